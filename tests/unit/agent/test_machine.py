"""The agent's state machine, by story."""

from __future__ import annotations

import pytest

from holdfast.agent.events import (
    CleanUp,
    Connected,
    Ending,
    Force,
    Held,
    NeverStarted,
    PartsReport,
    ProcessAdopted,
    ProcessExited,
    Report,
    SignalProcess,
    StartProcess,
    Tell,
    TermSeen,
    Timer,
    WorkerReport,
)
from holdfast.agent.machine import NOTICE_S_MAX, TIMER_LATE_S
from holdfast.agent.record import WORKER_SILENCE_S
from holdfast.wire.limits import KILL_AGAIN_S
from holdfast.wire.orders import (
    Attempt,
    Forget,
    GiveSettings,
    GiveView,
    Order,
    StartWorker,
    TakeShare,
    View,
)
from holdfast.wire.reports import ExitKind, Part, WorkerPhase
from holdfast.wire.resources import Resources
from tests.unit.agent.driving import IDENTITY, KEY, NODE, Driven, start, stop

FORGET = Forget(NODE, "job", 1)


def starts(actions: list[object]) -> int:
    return sum(isinstance(action, StartProcess) for action in actions)


def view(number: int, worker: int = 1) -> GiveView:
    return GiveView(NODE, "job", worker, View(number, {worker: (0,)}))


def share(number: int) -> TakeShare:
    return TakeShare(NODE, "job", 1, Attempt(number, 10, 1, 0.0), 0, 1)


def test_a_worker_lives_from_its_order_until_it_is_forgotten() -> None:
    agent = Driven()
    answer, actions = agent.order(start())
    assert answer.accepted
    assert starts(list(actions)) == 1
    assert agent.known().phase is WorkerPhase.STARTING
    agent.handle(WorkerReport(KEY, ready=True))
    assert agent.known().phase is WorkerPhase.READY
    agent.handle(WorkerReport(KEY, ready=True, view=1, step=5))
    facts = agent.known()
    assert (facts.phase, facts.view, facts.step) == (WorkerPhase.RUNNING, 1, 5)
    assert agent.end(KEY, Ending(code=0, word="done")) == [CleanUp(KEY), Report()]
    assert agent.exit_kind() is ExitKind.DONE
    assert agent.order(FORGET)[0].accepted
    assert agent.facts() is None


def test_an_order_of_an_older_term_is_refused_also_after_a_restart() -> None:
    agent = Driven()
    agent.order(start(), term=5)
    for each in (agent, agent.restarted()):
        answer, actions = each.order(stop(), term=4)
        assert answer.fenced
        assert "term 4 is over" in answer.reason
        assert actions == []


def test_a_new_term_is_written_down_before_its_order_is_answered() -> None:
    agent = Driven()
    agent.order(Forget(NODE, "job", 9), term=7)
    assert agent.entries == [TermSeen(7)]


def test_a_refused_order_of_a_new_term_still_fences_the_old_one() -> None:
    agent = Driven()
    elsewhere = StartWorker("other", "job", 1, "", ("true",), Resources(1.0))
    assert not agent.order(elsewhere, term=3)[0].accepted
    assert agent.restarted().order(start(), term=2)[0].fenced


@pytest.mark.parametrize("restart", [False, True])
def test_an_order_that_comes_twice_starts_one_process(restart: bool) -> None:
    agent = Driven()
    agent.started()
    agent = agent.restarted() if restart else agent
    answer, actions = agent.order(start())
    assert answer.accepted
    assert actions == []


@pytest.mark.parametrize("restart", [False, True])
def test_a_forgotten_worker_is_not_started_by_a_late_order(restart: bool) -> None:
    agent = Driven()
    agent.end(agent.started())
    agent.order(FORGET)
    agent = agent.restarted() if restart else agent
    assert starts(list(agent.order(start())[1])) == 0
    assert agent.facts() is None


def test_a_worker_that_was_stopped_before_its_start_arrived_is_never_started() -> None:
    agent = Driven()
    assert agent.order(stop())[0].accepted
    assert agent.exit_kind() is ExitKind.STOPPED
    for each in (agent, agent.restarted()):
        assert starts(list(each.order(start())[1])) == 0
        assert each.order(FORGET)[0].accepted


def test_an_accepted_worker_that_never_started_is_started_by_the_next_agent() -> None:
    agent = Driven()
    agent.order(start())
    again = agent.restarted()
    assert starts(list(again.handle(NeverStarted(KEY)))) == 1


def test_a_stopped_worker_that_never_started_is_not_started_by_the_next_agent() -> None:
    agent = Driven()
    agent.order(start())
    agent.order(stop())
    again = agent.restarted()
    assert starts(list(again.handle(NeverStarted(KEY)))) == 0
    assert again.exit_kind() is ExitKind.STOPPED


def test_a_worker_that_was_called_off_was_stopped_though_the_journal_has_lost_why() -> None:
    agent = Driven()
    agent.order(start())
    again = agent.restarted()
    assert starts(list(again.handle(NeverStarted(KEY, called_off=True)))) == 0
    assert again.exit_kind() is ExitKind.STOPPED


def test_a_worker_without_a_folder_has_ended_and_is_not_started_again() -> None:
    agent = Driven()
    agent.order(start())
    again = agent.restarted()
    assert starts(list(again.handle(NeverStarted(KEY, prepared=False)))) == 0
    assert again.exit_kind() is ExitKind.LOST
    assert starts(list(again.order(start())[1])) == 0


def test_a_stopped_worker_without_a_folder_was_stopped() -> None:
    agent = Driven()
    agent.started()
    agent.order(stop())
    again = agent.restarted()
    again.handle(NeverStarted(KEY, prepared=False))
    assert again.exit_kind() is ExitKind.STOPPED


def test_a_living_worker_is_not_forgotten() -> None:
    agent = Driven()
    agent.started()
    assert not agent.order(FORGET)[0].accepted
    assert agent.facts() is not None


def test_a_worker_is_asked_once_and_killed_when_its_notice_is_over() -> None:
    agent = Driven()
    key = agent.ready()
    answer, actions = agent.order(stop(notice_s=10.0))
    assert answer.accepted
    assert SignalProcess(key, Force.ASK) in actions
    agent.now_s = 5.0
    assert agent.order(stop(notice_s=10.0))[1] == []
    assert agent.machine.wake_s == 10.0
    agent.now_s = 9.9
    assert agent.handle(Timer()) == []
    agent.now_s = 10.0
    assert agent.handle(Timer()) == [SignalProcess(key, Force.KILL)]
    assert agent.handle(Timer()) == []
    agent.now_s = 10.0 + KILL_AGAIN_S
    assert agent.handle(Timer()) == [SignalProcess(key, Force.KILL)]


def test_a_shorter_notice_counts_and_a_longer_one_does_not() -> None:
    agent = Driven()
    agent.ready()
    agent.order(stop(notice_s=100.0))
    agent.order(stop(notice_s=3.0))
    agent.order(stop(notice_s=50.0))
    assert agent.machine.wake_s == 3.0


def test_a_notice_has_a_bound() -> None:
    agent = Driven()
    agent.ready()
    agent.order(stop(notice_s=1e9))
    assert agent.machine.wake_s == NOTICE_S_MAX


def test_a_stop_goes_on_with_the_next_agent() -> None:
    agent = Driven()
    key = agent.ready()
    agent.order(stop(notice_s=10.0))
    again = agent.restarted()
    assert again.handle(ProcessAdopted(key, IDENTITY)) == [SignalProcess(key, Force.ASK)]
    again.now_s = 10.0
    assert again.handle(Timer()) == [SignalProcess(key, Force.KILL)]
    again.end(key, Ending(signal=9))
    assert again.exit_kind() is ExitKind.STOPPED


def test_a_stop_goes_on_after_the_journal_was_written_anew() -> None:
    agent = Driven()
    key = agent.ready()
    agent.order(stop(notice_s=10.0))
    again = Driven(list(agent.machine.entries()))
    assert again.machine.wake_s == 10.0
    again.end(key, Ending(signal=15))
    assert again.exit_kind() is ExitKind.STOPPED


def test_a_worker_without_progress_is_killed_as_hung_also_across_a_restart() -> None:
    agent = Driven()
    key = agent.ready(silence_s=60.0)
    agent.handle(WorkerReport(key, ready=True, view=1, step=0))
    agent.now_s = 59.0
    agent.handle(WorkerReport(key, ready=True, view=1, step=1))
    agent.now_s = 60.0
    assert agent.handle(Timer()) == []
    agent.now_s = 119.0
    assert agent.handle(Timer()) == [SignalProcess(key, Force.KILL)]
    for each in (agent.restarted(), agent):
        each.end(key, Ending(signal=9))
        assert each.exit_kind() is ExitKind.HUNG


def test_a_worker_that_says_the_same_again_makes_no_progress() -> None:
    agent = Driven()
    key = agent.ready(silence_s=60.0)
    agent.handle(WorkerReport(key, ready=True, view=1, step=7))
    agent.now_s = 50.0
    agent.handle(WorkerReport(key, ready=True, view=1, step=7))
    assert agent.machine.wake_s == 60.0


def test_a_worker_that_waits_for_a_view_has_not_hung() -> None:
    agent = Driven()
    agent.ready(silence_s=60.0)
    assert agent.machine.wake_s is None


def test_a_worker_that_has_connected_and_says_nothing_has_hung() -> None:
    agent = Driven()
    key = agent.started()
    agent.handle(Connected(key))
    assert agent.machine.wake_s == WORKER_SILENCE_S


def test_a_training_that_never_connects_is_held_to_what_its_job_file_says() -> None:
    agent = Driven()
    agent.started(silence_s=60.0)
    assert agent.machine.wake_s == 60.0


def test_a_program_that_knows_nothing_of_us_never_hangs_by_our_rule() -> None:
    agent = Driven()
    agent.started()
    assert agent.machine.wake_s is None


def test_an_agent_that_was_asleep_holds_nobody_to_have_hung() -> None:
    agent = Driven()
    key = agent.ready(silence_s=60.0)
    agent.handle(WorkerReport(key, ready=True, view=1, step=0))
    agent.now_s = 60.0 + TIMER_LATE_S + 1.0
    assert agent.handle(Timer()) == []
    assert agent.machine.wake_s == agent.now_s + 60.0


def test_a_view_is_passed_on_once_and_told_again_on_a_new_connection() -> None:
    agent = Driven()
    key = agent.ready()
    assert agent.order(view(2))[1] == [Tell(key, view(2))]
    assert agent.order(view(2))[1] == []
    assert agent.order(view(1))[1] == []
    assert agent.handle(Connected(key)) == [Tell(key, view(2))]


def test_a_worker_that_connects_is_told_everything_at_once() -> None:
    agent = Driven()
    key = agent.ready()
    settings = GiveSettings(NODE, "job", 1, (("lr", "0.1", 5),))
    for order in (view(1), settings, share(1)):
        agent.order(order)
    agent.order(stop())
    told = agent.handle(Connected(key))
    assert [type(action.what).__name__ for action in told if isinstance(action, Tell)] == [
        "GiveSettings",
        "GiveView",
        "TakeShare",
        "StopWorker",
    ]


@pytest.mark.parametrize("order", [view(1), GiveSettings(NODE, "job", 1, ()), share(1)])
def test_nothing_is_passed_on_to_a_worker_that_is_not_there(order: Order) -> None:
    agent = Driven()
    assert not agent.order(order)[0].accepted
    agent.end(agent.started())
    answer, actions = agent.order(order)
    assert not answer.accepted
    assert actions == []


def test_parts_are_reported_per_attempt_and_old_attempts_are_dropped() -> None:
    agent = Driven()
    key = agent.ready()
    part = Part("parts/a", 3, "a")
    agent.handle(PartsReport(key, 1, (part,)))
    agent.handle(PartsReport(key, 2, missed=True))
    agent.handle(PartsReport(key, 3, (part,)))
    agent.handle(PartsReport(key, 4, (part,)))
    facts = agent.known()
    assert facts.parts == {3: (part,), 4: (part,)}
    assert facts.missed == {2}


def test_an_older_list_of_settings_does_not_take_the_place_of_a_newer_one() -> None:
    agent = Driven()
    key = agent.ready()
    older = GiveSettings(NODE, "job", 1, (("lr", "0.1", 0),))
    newer = GiveSettings(NODE, "job", 1, (("lr", "0.1", 0), ("lr", "0.2", 9)))
    assert Tell(key, newer) in agent.order(newer)[1]
    assert agent.known().settings == 2
    assert agent.order(older)[1] == []
    assert agent.known().settings == 2


def test_a_checkpoint_that_a_worker_could_not_read_is_reported() -> None:
    agent = Driven()
    key = agent.ready()
    actions = agent.handle(WorkerReport(key, ready=True, view=1, unreadable=frozenset({40})))
    assert Report() in actions
    assert agent.known().unreadable == {40}


def test_a_share_that_was_answered_is_not_asked_for_again() -> None:
    agent = Driven()
    key = agent.ready()
    assert agent.order(share(1))[1] == [Tell(key, share(1))]
    agent.handle(PartsReport(key, 1, ()))
    assert agent.order(share(1))[1] == []


def test_after_a_restart_a_snapshot_still_says_that_a_worker_holds_state() -> None:
    agent = Driven()
    key = agent.ready()
    agent.handle(WorkerReport(key, ready=True, view=3, step=40))
    agent.handle(WorkerReport(key, ready=True, view=3, step=41))
    facts = agent.restarted().known()
    assert (facts.phase, facts.view, facts.step) == (WorkerPhase.RUNNING, 3, 40)


def test_steps_are_not_written_down() -> None:
    agent = Driven()
    key = agent.ready()
    agent.handle(WorkerReport(key, ready=True, view=1, step=0))
    before = len(agent.entries)
    for step in range(1, 100):
        agent.handle(WorkerReport(key, ready=True, view=1, step=step))
    assert len(agent.entries) == before
    assert agent.entries[-1] == Held(key, 1, 0)


def test_a_late_word_of_a_worker_that_has_gone_changes_nothing() -> None:
    agent = Driven()
    key = agent.ready()
    agent.end(key)
    before = agent.machine.snapshot()
    assert agent.handle(WorkerReport(key, ready=True, view=9, step=9)) == []
    assert agent.handle(ProcessExited(key, Ending(code=0))) == []
    assert agent.machine.snapshot() == before
