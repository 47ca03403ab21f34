"""`run.barrier`: all workers of the job's present view."""

from __future__ import annotations

from holdfast.train.modes.asynchronous.rounds import AsyncRounds
from holdfast.train.modes.rounds import Rounds
from holdfast.wire.errors import Usage
from holdfast.wire.sharing import check_name


def barrier(rounds: Rounds, name: str, loops: int) -> None:
    """Wait until every lane's worker has come here. Whoever dies is not waited for: the survivors
    have its lanes then, and are here. One that the job has passed stays open: `loops` is how many
    loops this script has begun, and the state says how many the job has."""
    check_name("barrier", name)
    if isinstance(rounds, AsyncRounds):
        raise Usage(
            f"the barrier {name!r} in the asynchronous mode",
            why="its workers never wait for each other",
            fix="write `mode: sync`, or use run.once for what one worker has to do first",
        )
    rounds.join()
    if rounds.position.loop >= loops if loops else rounds.member.step > 0:
        return
    others = set(rounds.together(lambda _lane: name).values()) - {name}
    if others:
        raise Usage(
            f"this worker came to the barrier {name!r}, another one to {min(others)!r}",
            why="all workers of a job come to the same barriers, in the same order",
            fix="call run.barrier outside of conditions that differ between workers",
        )
