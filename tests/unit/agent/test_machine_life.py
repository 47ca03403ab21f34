"""Signs of life: what is frozen, what has hung, and what merely waits."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.agent.events import (
    Connected,
    Disconnected,
    Ending,
    Examine,
    Examined,
    Force,
    ProcessAdopted,
    SignalProcess,
    Timer,
    WorkerReport,
)
from holdfast.agent.machine import TIMER_LATE_S
from holdfast.agent.record import WORKER_FROZEN_S
from holdfast.wire.limits import KILL_AGAIN_S
from holdfast.wire.reports import ExitKind
from tests.unit.agent.driving import IDENTITY, KEY, Driven, stop

LATER_S = WORKER_FROZEN_S + 0.5


def running(**more: Any) -> Driven:
    """A worker in a view, that gives signs of life."""
    agent = Driven()
    agent.ready(**more)
    agent.handle(WorkerReport(KEY, ready=True, view=1, step=0, beats=True))
    return agent


def beat(agent: Driven, at_s: float, *, waits: bool = False, ending: bool = False) -> None:
    agent.now_s = at_s
    agent.handle(
        WorkerReport(KEY, ready=True, view=1, step=0, beats=True, waits=waits, ending=ending)
    )


def test_a_silent_worker_that_is_paused_is_killed_and_it_does_not_count_against_the_job() -> None:
    agent = running()
    agent.now_s = LATER_S
    assert agent.handle(Timer()) == [Examine(KEY)]
    assert agent.handle(Examined(KEY, paused=True)) == [SignalProcess(KEY, Force.KILL)]
    assert agent.machine.wake_s == LATER_S + KILL_AGAIN_S
    for each in (agent.restarted(), agent):
        each.end(KEY, Ending(signal=9))
        end = each.known().exit
        assert end is not None
        assert end.kind is ExitKind.SIGNAL
        assert "paused" in end.detail
        assert not end.kind.is_failure


def test_a_silent_worker_that_is_merely_busy_is_looked_at_again_and_left_alone() -> None:
    agent = running()
    for turn in range(1, 4):
        agent.now_s = turn * LATER_S
        assert agent.handle(Timer()) == [Examine(KEY)]
        assert agent.handle(Examined(KEY, paused=False)) == []
    assert agent.exit_kind() is None


def test_a_worker_that_has_spoken_since_it_was_looked_at_is_not_killed() -> None:
    agent = running()
    agent.now_s = LATER_S
    agent.handle(Timer())
    beat(agent, LATER_S + 0.1)
    assert agent.handle(Examined(KEY, paused=True)) == []


def test_signs_of_life_are_enough_while_it_computes() -> None:
    agent = running()
    for at_s in range(1, 60):
        beat(agent, float(at_s))
        assert agent.handle(Timer()) == []


def test_a_worker_whose_line_was_closed_is_not_looked_at() -> None:
    agent = running()
    agent.handle(Disconnected(KEY))
    agent.now_s = LATER_S
    assert agent.handle(Timer()) == []
    agent.handle(Connected(KEY))
    beat(agent, LATER_S)
    agent.now_s = 2 * LATER_S
    assert agent.handle(Timer()) == [Examine(KEY)]


def test_a_worker_that_never_spoke_is_not_looked_at() -> None:
    agent = Driven()
    agent.started()
    agent.now_s = LATER_S
    assert agent.handle(Timer()) == []


def test_a_worker_that_does_not_come_back_to_the_next_agent_is_looked_at() -> None:
    again = running().restarted()
    again.handle(ProcessAdopted(KEY, IDENTITY))
    again.now_s = LATER_S
    assert again.handle(Timer()) == [Examine(KEY)]
    assert again.handle(Examined(KEY, paused=True)) == [SignalProcess(KEY, Force.KILL)]


def test_a_worker_that_ends_anyway_is_not_killed_for_being_paused() -> None:
    agent = running()
    agent.now_s = LATER_S
    agent.handle(Timer())
    agent.order(stop(notice_s=100.0))
    assert agent.handle(Examined(KEY, paused=True)) == []


def test_a_stop_of_a_frozen_worker_does_not_hide_why_it_was_killed() -> None:
    agent = running()
    agent.now_s = LATER_S
    agent.handle(Timer())
    agent.handle(Examined(KEY, paused=True))
    agent.order(stop(notice_s=0.0))
    agent.end(KEY, Ending(signal=9))
    assert agent.exit_kind() is ExitKind.SIGNAL


@pytest.mark.parametrize("why", ["waits", "ending"])
def test_a_worker_that_waits_for_others_has_not_hung(why: str) -> None:
    agent = running(silence_s=60.0)
    for at_s in range(1, 200):
        beat(agent, float(at_s), waits=why == "waits", ending=why == "ending")
        assert agent.handle(Timer()) == []


def test_the_time_that_a_worker_waited_for_its_peers_is_not_counted() -> None:
    agent = running(silence_s=60.0)
    for at_s in range(1, 100):
        beat(agent, float(at_s), waits=True)
    for at_s in range(100, 160):
        beat(agent, float(at_s))
        assert agent.handle(Timer()) == []
    beat(agent, 160.0)
    assert agent.handle(Timer()) == [SignalProcess(KEY, Force.KILL)]
    agent.end(KEY, Ending(signal=9))
    assert agent.exit_kind() is ExitKind.HUNG


def test_beating_alone_is_no_progress() -> None:
    agent = running(silence_s=60.0)
    for at_s in range(1, 60):
        beat(agent, float(at_s))
        assert agent.handle(Timer()) == []
    beat(agent, 60.0)
    assert agent.handle(Timer()) == [SignalProcess(KEY, Force.KILL)]


def test_an_agent_that_was_asleep_looks_before_it_holds_anybody_to_be_frozen() -> None:
    agent = running(silence_s=60.0)
    agent.now_s = 60.0 + TIMER_LATE_S + 1.0
    assert agent.handle(Timer()) == [Examine(KEY)]
    assert agent.handle(Examined(KEY, paused=False)) == []
    assert agent.exit_kind() is None
