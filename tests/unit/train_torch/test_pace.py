"""How long a lane takes a worker: what it says of itself, and when."""

from __future__ import annotations

from holdfast.train.pace import PACE_S, PACE_STEPS_MIN, LanePace
from holdfast.wire.reports import LANE_METRIC


class Watch:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def step(pace: LanePace, watch: Watch, *lanes_s: float, waits_s: float = 0.0) -> None:
    for each in lanes_s:
        pace.lane()
        watch.now_s += each
    pace.end()
    watch.now_s += waits_s


def test_it_is_the_median_of_a_lane_without_the_time_that_it_waits_for_others() -> None:
    watch = Watch()
    pace = LanePace(watch)
    for number in range(30):
        slow = 5.0 if number == 7 else 0.0  # a pause
        step(pace, watch, 0.1 + slow, 0.3, waits_s=0.7)
    assert round(pace.metrics()[LANE_METRIC]) == 200


def test_nothing_is_said_before_enough_was_seen_of_the_view_and_a_new_view_begins_anew() -> None:
    watch = Watch()
    pace = LanePace(watch)
    for _ in range(PACE_STEPS_MIN):
        step(pace, watch, PACE_S / PACE_STEPS_MIN - 0.01)
    assert not pace.metrics()
    watch.now_s += 1.0
    assert pace.metrics()
    pace.anew()
    assert not pace.metrics()
    step(pace, watch, PACE_S)
    assert not pace.metrics()  # time enough, but one step only


def test_a_step_that_the_view_interrupted_does_not_count() -> None:
    watch = Watch()
    pace = LanePace(watch)
    pace.lane()
    watch.now_s += 100.0
    pace.anew()
    for _ in range(20):
        step(pace, watch, 1.0)
    assert round(pace.metrics()[LANE_METRIC]) == 1000
