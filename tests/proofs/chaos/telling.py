"""What people see of a run: a line while it goes on, figures at its end, a story if it fails."""

from __future__ import annotations

from collections import Counter
from typing import Final

from tests.proofs.chaos.histories import Call
from tests.proofs.chaos.observers import Observers
from tests.proofs.control.events import Commit, Event, Term, View
from tests.proofs.control.stories import clock

STORY: Final = 60
# Failures that are further apart than this are told apart.
GAP_S: Final = 2.0
TOLD: Final = ("kills", "cuts", "pauses", "full disks")


def line(
    seconds: float, passed_s: float, tally: Counter[str], observers: Observers, last: str
) -> str:
    """How far it is."""
    rounds = observers.rounds
    done = ", ".join(f"{tally[what]} {what}" for what in TOLD if tally[what])
    went = f"training {len(rounds.trainings)} at step {rounds.step}"
    asked = f"{len(observers.calls):,} tries"
    return (
        f"{_minutes(passed_s)} of {_minutes(seconds)}  {done or 'peace'}; {went}; {asked}  {last}"
    )


def figures(tally: Counter[str], observers: Observers, took_s: float) -> dict[str, int | float]:
    """What was done, and what came of it."""
    events = observers.watcher.events

    def count(kind: type[Event]) -> int:
        return sum(isinstance(event, kind) for event in events)

    views = [event for event in events if isinstance(event, View)]
    kinds = sorted(what for what in tally if what.startswith("kills of "))
    done = ("kills", *kinds, "processes killed", "cuts", "pauses", "slowed links", "full disks")
    more = (
        "restarts",
        "rollouts",
        "rollbacks",
        "acts that met nobody",
        "acts whose condition never held",
    )
    return {
        **{what: tally[what] for what in (*done, *more)},
        "requests": len({call.number for call in observers.calls}),
        "requests that the other gateway answered": observers.elsewhere,
        "requests failed while nobody could be reached": len(observers.failed),
        "versions that answered": len({call.version for call in observers.calls if call.version}),
        "plans": len(observers.onlooker.plans),
        "commits": count(Commit),
        "trainings, all with the right bits": observers.rounds.done,
        "steps": observers.rounds.steps,
        "batches computed again": observers.rounds.again,
        "views": len(views),
        "views from a checkpoint": sum(bool(view.restore_step) for view in views),
        "terms": count(Term),
        "acknowledged writes": observers.written,
        "seconds": round(took_s),
    }


def table(found: dict[str, int | float]) -> str:
    width = max(map(len, found))
    return "\n".join(f"  {what:<{width}}  {count:>10,}" for what, count in found.items())


def gaps(failed: list[Call]) -> str:
    """When requests failed although nothing was promised, and how."""
    lines = []
    left = sorted(failed, key=lambda call: call.sent_s)
    while left:
        first = last = left[0]
        group = []
        while left and left[0].sent_s < last.ended_s + GAP_S:
            last = left.pop(0)
            group.append(last)
        (wrong, _), *_ = Counter(call.wrong for call in group).most_common(1)
        length_s = last.ended_s - first.sent_s
        when = f"{clock(first.sent_s)} for {length_s:.1f} s"
        lines.append(f"{when}: {len(group)} requests failed: {wrong[:120]}")
    return "\n".join(lines)


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60:02d}:{int(seconds) % 60:02d}"
