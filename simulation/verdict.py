"""What a run of a seed came to, and what a kind of world is. Both worlds, of control and of
serving, give this; the search, the runner and the hunt for mutants need nothing else of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

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
