"""Going on with a job's data: what its state says of it, and what the script says now.

What a loop reads is part of the state: how many samples, in which order, how many at a time. A
state that goes on with something else would take some samples twice and others never, and nobody
would notice. So that is refused, with what has changed. What may change is announced: the settings
`lane_batch` and `accumulate`, which all workers take at one step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.train.data.sizes import Sizes
from holdfast.train.members.solo import Solo
from holdfast.train.modes.asynchronous.rounds import AsyncRounds
from holdfast.train.modes.rounds import Rounds
from holdfast.wire.errors import Usage
from holdfast.wire.talk import SIZE_SETTINGS


def sizes_of(
    rounds: Rounds, data: Any, lane_batch: int | None, parts: int, batch_sampler: Any
) -> Sizes:
    """What a step of this loop takes, live where the mode allows it."""
    if (lane_batch is None) == (batch_sampler is None):
        raise Usage(
            "run.batches needs lane_batch=, or batch_sampler=, and not both",
            why="either a number of samples makes a lane's batch, or each list of the sampler does",
            fix="run.batches(data, lane_batch=32)",
        )
    live = not isinstance(rounds, AsyncRounds) and not hasattr(data, "one_size")
    settings = type(rounds.settings)() if hasattr(data, "one_size") else rounds.settings
    return Sizes(settings, lane_batch, parts, live=live)


def check(rounds: Rounds, now: Mapping[str, Any]) -> None:
    """The script has come to the loop that the position is in: `Usage` if it reads other data than
    the state comes from. A loop that begins writes down what it reads."""
    position = rounds.position
    if isinstance(rounds, AsyncRounds):
        # There is no common position: the ledger keeps what the first one has said.
        position.data = rounds.first_said("data", dict(now))
    elif not position.data:
        position.data = dict(now)
    alone = isinstance(rounds.member, Solo)
    live = not alone and not isinstance(rounds, AsyncRounds)
    changed = []
    for name in sorted({*position.data, *now}):
        before, after = position.data.get(name), now.get(name)
        announced = live and name in SIZE_SETTINGS and rounds.settings.given(name) is not None
        if before != after and not announced:
            changed.append((name, before, after))
    if not changed:
        return
    raise Usage(
        f"the script reads other data than it did until step {rounds.member.step}",
        why="; ".join(_said(*each) for each in changed),
        fix=_fix(rounds, [name for name, _, _ in changed], now, alone=alone),
    )


def _said(name: str, before: Any, after: Any) -> str:
    if isinstance(before, str) and before.startswith("sha256:"):
        return f"{name} have changed"
    return f"{name}: {_shown(before)} -> {_shown(after)}"


def _shown(value: Any) -> str:
    return "not given" if value is None else str(value)


def _fix(rounds: Rounds, names: list[str], now: Mapping[str, Any], *, alone: bool) -> str:
    if alone:
        return "give it what it had, or begin anew with an empty folder: HOLDFAST_CHECKPOINTS=OTHER"
    live = [
        f"holdfast set {rounds.job} {name}={now[name]}" for name in names if name in SIZE_SETTINGS
    ]
    if live and len(live) == len(names):
        return f"leave the script as it was, and say {' and '.join(live)}; or begin anew: a new job"
    return "give it what it had, or begin anew: start it as a new job, under another name"
