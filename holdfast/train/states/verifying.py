"""Do all workers hold the same, where it matters most: at the end of a loop, before publishing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from holdfast.train.members.membership import Membership
from holdfast.train.states.divergence import digests, diverged, together
from holdfast.train.states.state import State


class Asking(Protocol):
    """A run that can ask all workers."""

    @property
    def member(self) -> Membership: ...

    def together(
        self, work: Callable[[int], Any], lanes: Sequence[int] | None = None
    ) -> dict[int, Any]: ...


def verify(run: Asking, when: str, state: Callable[[], State]) -> None:
    """All of `state()` is compared, by everyone at this place. `Diverged`: it is not the same."""
    found = run.together(_once(lambda: together(_listed(state())).hex()))
    if len(set(found.values())) > 1:
        listed = run.together(_once(lambda: {name: it.hex() for name, it in _listed(state())}))
        raise diverged(when, _what(listed, run.member.view.lanes))


def _what(listed: Mapping[int, Mapping[str, str]], lanes: Mapping[int, Sequence[int]]) -> str:
    """Who differs from the worker of lane 0 in what first."""
    workers = {lane: worker for worker, held in lanes.items() for lane in held}
    right, said = listed[min(listed)], dict[int, str]()
    for lane, found in sorted(listed.items()):
        names = [name for name in right if found.get(name) != right[name]] or ["what it holds"]
        if found != right:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            said.setdefault(workers.get(lane, -1), f"differs in {names[0]}{more}")
    return "; ".join(f"worker {worker} {what}" for worker, what in said.items())


def _listed(state: State) -> list[tuple[str, bytes]]:
    """Digests of the entries. The notes have what only some lanes' workers know yet."""
    return digests(state, state.entries)[1:]


def _once(work: Callable[[], Any]) -> Callable[[int], Any]:
    """The same for all lanes of a worker, found out once."""
    found: list[Any] = []

    def of(_lane: int) -> Any:
        if not found:
            found.append(work())
        return found[0]

    return of
