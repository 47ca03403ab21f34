"""Which workers are slower than the others, and how many lanes each should have. Pure.

Every worker says how long it needs for a lane by itself (`LANE_METRIC`), once it has been in its
view for a while. A step takes as long as the slowest member needs for its lanes; what makes that
shortest is how the lanes are dealt. They are dealt anew only if a step becomes clearly shorter
(`UNEVEN_GAIN`), and a new view begins with nothing told: so lanes never move to and fro. A worker
that has become fast again gets its lanes back by the same rule.
"""

from __future__ import annotations

import heapq
import statistics
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from holdfast.control.decide.facts import View, WorkerFacts
from holdfast.wire.reports import LANE_METRIC

# Lanes move from slower to faster workers only when a step becomes shorter by this part of it: less
# would move them to and fro with the noise of a machine.
UNEVEN_GAIN: Final = 0.15
# A worker that needs so much longer for a lane than the others do is named to people.
SLOW_RATIO: Final = 1.25


class Slowest(NamedTuple):
    """The slowest worker, and how many times as long as the others' median it needs for a lane."""

    worker: int
    ratio: float

    @property
    def notable(self) -> bool:
        return self.ratio >= SLOW_RATIO

    @property
    def text(self) -> str:
        return f"{self.ratio:.2f} times the others' time for a lane"


class Deal(NamedTuple):
    """How many lanes each member should have, and the sentence that says why."""

    counts: Mapping[int, int]
    why: str


def paces(view: View | None, facts: Mapping[int, WorkerFacts]) -> dict[int, float]:
    """What each member needs for a lane, in ms; empty as long as one of them has not said it."""
    found: dict[int, float] = {}
    for worker in view.lanes if view is not None else ():
        said = facts.get(worker)
        if said is None or view is None or said.view != view.number:
            return {}
        pace = said.metrics.get(LANE_METRIC, 0.0)
        if not 0 < pace < float("inf"):
            return {}
        found[worker] = pace
    return found


def slowest(found: Mapping[int, float]) -> Slowest | None:
    """Who is slowest; None: there is nobody to be slower than."""
    if len(found) < 2:
        return None
    worker = max(found, key=lambda each: (found[each], -each))
    others = statistics.median(pace for each, pace in found.items() if each != worker)
    return Slowest(worker, found[worker] / others)


def deal(lanes: Mapping[int, Sequence[int]], found: Mapping[int, float]) -> Deal | None:
    """Another number of lanes for each, if a step becomes clearly shorter by it."""
    slow = slowest(found)
    if slow is None:
        return None
    counts = dealt(sum(map(len, lanes.values())), found)
    before_ms = max(len(held) * found[worker] for worker, held in lanes.items())
    after_ms = max(count * found[worker] for worker, count in counts.items())
    if after_ms > before_ms * (1 - UNEVEN_GAIN):
        return None
    if counts[slow.worker] > len(lanes[slow.worker]):
        who = f"worker {slow.worker} is not as slow as it was"
    elif slow.notable:
        who = f"worker {slow.worker} needs {slow.ratio:.1f} times as long for a lane as the others"
    else:
        who = "the workers are about equally fast again"
    return Deal(counts, f"{who}; a step takes {after_ms:.0f} ms so, instead of {before_ms:.0f}")


def dealt(lanes: int, found: Mapping[int, float]) -> dict[int, int]:
    """So many lanes for each that the longest of all takes the shortest time. Everybody has one."""
    counts = dict.fromkeys(sorted(found), 1)
    line = [(2 * found[worker], worker) for worker in counts]
    heapq.heapify(line)
    for _ in range(lanes - len(counts)):
        _, worker = heapq.heappop(line)
        counts[worker] += 1
        heapq.heappush(line, ((counts[worker] + 1) * found[worker], worker))
    return counts
