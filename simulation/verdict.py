"""What a run of a seed came to, and what a kind of world is. Both worlds, of control and of
serving, give this; the search, the runner and the hunt for mutants need nothing else of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from holdfast.wire.errors import BugError
from simulation.kernel import Kernel
from simulation.named import NamedFaults

NO_FAULTS_OFF: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a run came to. `rule` is empty if nothing was wrong."""

    seed: int
    rule: str
    what: str
    events: int
    simulated_s: float
    faults: tuple[str, ...]  # each that struck, by kind and number: "drop#3"
    story: tuple[str, ...]  # the whole of it, if the run was traced
    digest: str  # of the trace, if the run was traced
    happened: Mapping[str, int]  # what was decided, done and refused, by kind

    @property
    def ok(self) -> bool:
        return not self.rule


def verdict_of(
    seed: int,
    kernel: Kernel,
    faults: NamedFaults,
    happened: Mapping[str, int],
    broken: tuple[str, str] = ("", ""),
) -> Verdict:
    """What a run came to that has ended. `broken`: the rule, and what broke it."""
    return Verdict(
        seed,
        *broken,
        kernel.events,
        kernel.now_s,
        tuple(faults.struck),
        tuple(kernel.story(len(kernel.trace))),
        kernel.digest() if kernel.traced else "",
        dict(happened),
    )


def with_story(play: Callable[[bool], Verdict], traced: bool) -> Verdict:
    """`play(traced)` runs a seed. Traces cost time and most are never read: one that fails is run
    again for its."""
    verdict = play(traced)
    if verdict.ok or traced:
        return verdict
    again = play(True)
    if again.rule != verdict.rule:
        raise BugError(
            f"seed {verdict.seed} broke {verdict.rule!r}, and when run again {again.rule!r}"
        )
    return again


class Run(Protocol):
    """Runs one seed. `off`: faults that do not happen, by kind or by name. `traced`: with story and
    digest; a run that breaks a rule always has them. `own_checks`: let the code under test judge
    itself too; a hunt for mutants leaves that to the world's truth."""

    def __call__(
        self,
        seed: int,
        off: frozenset[str] = NO_FAULTS_OFF,
        *,
        traced: bool = False,
        own_checks: bool = True,
    ) -> Verdict: ...


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of world: the module whose command replays a seed of it, and how a seed is run."""

    module: str
    run: Run
