"""What is reported at once, and what may wait a moment."""

from __future__ import annotations

from dataclasses import replace

from holdfast.agent.uplink import Pace
from holdfast.wire.limits import REPORT_S, REPORT_STEPS_S
from holdfast.wire.reports import Exit, ExitKind, NodeFacts, Part, WorkerFacts, WorkerPhase
from holdfast.wire.resources import Resources

WORKER = WorkerFacts("j", 1, WorkerPhase.RUNNING, view=1, step=5)


def facts(worker: WorkerFacts = WORKER) -> NodeFacts:
    return NodeFacts("n1", Resources(cpu=1.0), (worker,))


def pace_after(sent: NodeFacts, at_s: float = 100.0) -> Pace:
    pace = Pace()
    pace.sent(sent, at_s)
    return pace


def test_the_first_snapshot_goes_at_once() -> None:
    assert Pace().wait_s(facts(), 0.0) == 0.0


def test_an_unchanged_snapshot_goes_as_a_sign_of_life() -> None:
    pace = pace_after(facts())
    assert pace.wait_s(facts(), 100.0) == REPORT_S
    assert pace.wait_s(facts(), 100.0 + REPORT_S) == 0.0


def test_a_later_step_alone_waits_a_moment_and_no_longer() -> None:
    later = facts(replace(WORKER, step=6))
    pace = pace_after(facts())
    assert 0.0 < pace.wait_s(later, 100.0) <= REPORT_STEPS_S
    assert pace.wait_s(later, 100.0 + REPORT_STEPS_S) == 0.0


def test_whatever_a_decision_hangs_on_goes_at_once() -> None:
    pace = pace_after(facts())
    for changed in (
        replace(WORKER, phase=WorkerPhase.GONE, exit=Exit(ExitKind.SIGNAL)),
        replace(WORKER, view=2, step=6),
        replace(WORKER, step=None),
        replace(WORKER, parts={1: (Part("k", 1, "d"),)}),
        replace(WORKER, missed=frozenset({1})),
    ):
        assert pace.wait_s(facts(changed), 100.0) == 0.0
    assert pace.wait_s(NodeFacts("n1", Resources(cpu=1.0)), 100.0) == 0.0
    held = pace_after(facts(replace(WORKER, step=None)))
    assert held.wait_s(facts(replace(WORKER, step=0)), 100.0) == 0.0


def test_a_leader_may_ask_for_fewer_steps_but_not_for_silence_or_haste() -> None:
    later = facts(replace(WORKER, step=6))
    pace = pace_after(facts())
    pace.ask_steps(2.5)
    assert pace.wait_s(later, 100.0) == 2.5
    assert pace.wait_s(facts(), 100.0) == 2.5 > REPORT_S
    gone = facts(replace(WORKER, phase=WorkerPhase.GONE, exit=Exit(ExitKind.SIGNAL)))
    assert pace.wait_s(gone, 100.0) == 0.0
    for nonsense in (0.0, -1.0, 1e9, float("nan")):
        pace.ask_steps(nonsense)
        assert pace.steps_s == 2.5
