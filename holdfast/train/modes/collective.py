"""What all workers do together: each answers for its lanes, and everyone gets all the answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from holdfast.train.chance import random_numbers_kept, seed_everything
from holdfast.train.modes.run_state import RunState, Where
from holdfast.train.modes.update_hooks import UpdateHooks
from holdfast.train.modes.view_changes import ViewChanges
from holdfast.train.states.divergence import digests, diverged, together
from holdfast.train.states.state import TrainingState
from holdfast.train.sums.buffers import Buffers
from holdfast.wire.errors import PeerLost, Unavailable, Usage
from holdfast.wire.sharing import check_name


class Replaced(BaseException):
    """The state under a hook was replaced by that of a member further ahead: it is to be given up.
    No `Exception`, so that no hook catches it by accident."""


def left_behind() -> Unavailable:
    return Unavailable(
        "this worker was left behind in the middle of something for all workers",
        why="the others have gone on without it",
        fix="nothing: it is started again and takes their state",
    )


class Collective:
    """Questions that a script asks in hooks and outside of loops: the same on every worker, in the
    same order. Who begins anew in the middle gets the answers of then."""

    def __init__(self, held: RunState, views: ViewChanges, update_hooks: UpdateHooks) -> None:
        self._held, self._views, self._update_hooks = held, views, update_hooks
        self.asked = 0  # questions that the hooks of this step have asked

    def together(
        self, work: Callable[[int], Any], lanes: Sequence[int] | None = None
    ) -> dict[int, Any]:
        """Let each of these lanes do its work at its worker; everyone gets what all have returned.

        What is returned must be JSON. When a worker dies, others do its lanes again.
        """
        held = self._held
        self._update_hooks.refuse_question()
        if held.where is Where.BODY:
            raise Usage(
                "something for all workers was asked for in the loop's body",
                why="the body runs once a lane, so workers would ask for it at different times",
                fix="do it in a hook: run.every_epoch(hook) or run.every(steps, hook)",
            )
        self._views.join()
        if held.where is Where.HOOK:
            number, self.asked = self.asked, self.asked + 1
            label: tuple[int | str, ...] = ("asked in a hook", held.member.step, number)
        else:
            if held.resuming.offered is None and held.member.is_shared:
                held.resuming.keep(held.tracked, held.applied)
            number, found = held.resuming.ask(held.position)
            label = ("asked", held.resuming.region, number)
            if found is not None:
                return by_lane(found)
            number += held.position.asked
        wanted = range(held.lanes) if lanes is None else lanes
        while number >= len(held.position.results):
            if (state := held.resuming.middle) is not None:
                held.resuming.middle = None
                held.fill(state)  # whoever gave it stands here too
            try:
                with random_numbers_kept():  # workers have done work for different lanes
                    found = self._answered(number, label, work, wanted)
            except PeerLost:
                self._views.renew()
                if held.adopted:
                    raise self._superseded() from None
                continue
            held.position.results.append(found)
        return by_lane(held.position.results[number])

    def _answered(
        self,
        number: int,
        label: tuple[int | str, ...],
        work: Callable[[int], Any],
        wanted: Sequence[int],
    ) -> dict[str, Any]:
        held, done = self._held, dict[int, Any]()
        stepping = held.stepping
        buffers = Buffers(held.tracked.models) if stepping is None else stepping.buffers
        buffers.absorb()
        for lane in held.member.lanes:
            if lane in wanted:
                seed_everything(held.seed_of(*label, "lane", lane))
                done[lane] = work(lane)
                buffers.before_lane()  # what one lane does to them others have not done
        place = held.member.step, number
        return self._views.talk().ask(place, held.position.results, done, wanted)

    def _superseded(self) -> BaseException:
        if not self._held.position.settled or self._held.stepping is not None:
            return Replaced()
        return left_behind()

    def barrier(self, name: str, loops: int) -> None:
        """Wait until every lane's worker has come here. Whoever dies is not waited for: the
        survivors have its lanes then, and are here. One that the job has passed stays open: `loops`
        is how many loops this script has begun, and the state says how many the job has."""
        check_name("barrier", name)
        self._views.join()
        if self._held.position.loop >= loops if loops else self._held.member.step > 0:
            return
        others = set(self.together(lambda _lane: name).values()) - {name}
        if others:
            raise Usage(
                f"this worker came to the barrier {name!r}, another one to {min(others)!r}",
                why="all workers of a job come to the same barriers, in the same order",
                fix="call run.barrier outside of conditions that differ between workers",
            )

    # --- where it matters most: at the end of a loop, before publishing ------------------------

    def verify(self, when: str, state: Callable[[], TrainingState]) -> None:
        """All of `state()` is the same on all workers. `Diverged`: it is not."""
        member = self._held.member
        if member.is_alone:
            return
        found = self.together(_once(lambda: together(_listed(state())).hex()))
        if len(set(found.values())) > 1:
            listed = self.together(_once(lambda: {name: it.hex() for name, it in _listed(state())}))
            raise diverged(when, _what(listed, member.view.lanes))


def by_lane(found: Mapping[str, Any]) -> dict[int, Any]:
    """An answer as JSON has it, by the number of the lane."""
    return {int(lane): value for lane, value in found.items()}


def _what(listed: Mapping[int, Mapping[str, str]], lanes: Mapping[int, Sequence[int]]) -> str:
    """Who differs from the worker of lane 0 in what first."""
    workers = {lane: worker for worker, held in lanes.items() for lane in held}
    right, reported = listed[min(listed)], dict[int, str]()
    for lane, found in sorted(listed.items()):
        names = [name for name in right if found.get(name) != right[name]] or ["what it holds"]
        if found != right:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            reported.setdefault(workers.get(lane, -1), f"differs in {names[0]}{more}")
    return "; ".join(f"worker {worker} {what}" for worker, what in reported.items())


def _listed(state: TrainingState) -> list[tuple[str, bytes]]:
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
