"""The history of a job as a run tells it: which lines, in which words, each once."""

from __future__ import annotations

from pathlib import Path

import holdfast
from holdfast.cli.run.events import HistoryReader, RunEvent, StatusFilter, event_of, own_traceback
from holdfast.wire.causes import cause_of
from holdfast.wire.history import HistoryEntry
from holdfast.wire.limits import RUN_SETTLE_S

UNPACKED = "/x/.holdfast/bundles/abc/files"
OURS = str(Path(holdfast.__file__).parent)
TRACEBACK = f"""Traceback (most recent call last):
  File "<frozen runpy>", line 198, in _run_module_as_main
  File "{OURS}/agent/zygote.py", line 10, in work
    runpy.run_path(script)
    ~~~~~~~~~~~~~~^^^^^^^^
  File "{UNPACKED}/train.py", line 7, in <module>
    main()
  File "{UNPACKED}/model.py", line 3, in main
    raise ValueError("no such loss")
ValueError: no such loss"""
OWN = """Traceback (most recent call last):
  File "/mine/train.py", line 7, in <module>
    main()
  File "/mine/model.py", line 3, in main
    raise ValueError("no such loss")
ValueError: no such loss"""


def entry(what: str, reason: str, at_s: float = 1.0) -> HistoryEntry:
    return HistoryEntry(at_s, 1, what, reason)


def test_a_history_that_is_read_again_gives_each_entry_once() -> None:
    entries = [entry("PlaceWorker", f"worker {number}", float(number)) for number in range(6)]
    story = HistoryReader(entries[:2])
    assert story.news(entries[:2]) == []
    assert story.news(entries[:4]) == entries[2:4]
    assert story.news(entries[1:]) == entries[4:]
    assert story.news([]) == []


def test_entries_that_went_round_before_they_were_read_do_not_bring_old_ones_back() -> None:
    entries = [entry("PlaceWorker", f"worker {number}", float(number)) for number in range(10)]
    story = HistoryReader(entries[:3])
    assert story.news(entries[5:]) == entries[5:]


def test_equal_entries_are_told_apart_by_their_place() -> None:
    same = [entry("Trouble", "again") for _ in range(3)]
    story = HistoryReader()
    assert len(story.news(same[:1])) == 1
    assert story.news(same[:1]) == []


def test_orders_and_steps_towards_something_are_not_told() -> None:
    for what in ("GiveView", "TakeShare", "BeginCheckpoint", "PlaceWorker", "Forget"):
        assert event_of(entry(what, "worker 1"), {}) is None


def test_a_killed_worker_is_told_by_its_signal_without_what_it_said_last() -> None:
    reason = f"worker 3 is gone (signal): {TRACEBACK}\nit was ended by SIGKILL, which somebody sent"
    event = event_of(entry("UnplaceWorker", reason), {})
    assert event is not None
    assert event.text == "worker 3 was killed (SIGKILL)"
    assert event.loss and event.worker == 3 and not event.detail


def test_a_failed_worker_is_told_with_the_users_own_traceback() -> None:
    reason = f"worker 2 is gone (error): {TRACEBACK}\nit ended with status 1"
    event = event_of(entry("UnplaceWorker", reason), {UNPACKED: "/mine"})
    assert event is not None
    assert event.text == "worker 2 failed: ValueError: no such loss (model.py, line 3)"
    assert event.detail == OWN
    assert event.loss


def test_a_worker_that_was_asked_to_go_is_not_told_and_one_that_finished_is_no_loss() -> None:
    for kind in ("left", "stopped"):
        assert (
            event_of(entry("UnplaceWorker", f"worker 2 is gone ({kind}): it ended with 0"), {})
            is None
        )
    event = event_of(entry("UnplaceWorker", "worker 2 is gone (done): it ended with status 0"), {})
    assert event is not None and event.text == "worker 2 has finished"
    assert not event.loss and not event.detail


def test_only_a_status_that_lasts_is_told_and_a_failure_that_is_waited_out_at_once() -> None:
    settling = StatusFilter()
    view, first = (
        RunEvent(1.0, "WriteView", "view 1"),
        RunEvent(1.0, "SetStatus", "3 workers to start"),
    )
    second = RunEvent(1.1, "SetStatus", "on 3 workers")
    assert settling.passed([first, view], 10.0) == [view]
    assert settling.passed([second], 10.1) == []
    assert settling.passed([], 10.1 + RUN_SETTLE_S) == [second]
    assert settling.passed([], 99.0) == []
    alike = [RunEvent(2.0, "Finish", "finished"), RunEvent(2.0, "SetStatus", "finished")]
    assert settling.passed(alike, 99.5) == alike[:1]
    assert settling.passed([], 99.5 + RUN_SETTLE_S) == []
    failure = RunEvent(2.0, "SetStatus", "waits 1 s after failure 1 of at most 3: boom")
    assert settling.passed([failure], 100.0) == [failure]


def test_a_status_with_a_traceback_in_it_is_told_in_one_line() -> None:
    reason = f"failed: {TRACEBACK}\nit ended with status 1\n(worker 2; the job failed once)"
    event = event_of(entry("SetStatus", reason), {})
    assert event is not None
    remark = "(worker 2; the job failed once)"
    assert event.text == f"failed: ValueError: no such loss (model.py, line 3) {remark}"


def test_a_failure_that_is_waited_out_is_told_with_what_comes_next() -> None:
    reason = "waits 2 s after failure 1 of at most 3: it ended with status 1"
    event = event_of(entry("SetStatus", reason), {})
    assert event is not None
    assert event.text == "waits 2 s after failure 1 of at most 3, then tries again"


def test_what_is_not_a_traceback_stays_as_it_is() -> None:
    text = "one\n    two\n  three"
    assert own_traceback(text, {}) == text


def test_an_unknown_kind_of_entry_is_told_and_not_lost() -> None:
    event = event_of(entry("User", "its user asked: scale to 5"), {})
    assert event is not None and event.text == "its user asked: scale to 5"


def test_a_traceback_from_a_workers_own_copy_of_the_code_names_the_users_file() -> None:
    own = '  File "/c/nodes/n/workers/train.1/code/train.py", line 3, in f'
    text = f"Traceback (most recent call last):\n{own}\nValueError: x"
    assert '"/mine/train.py", line 3' in own_traceback(text, {"/c/bundles/1/files": "/mine"})
    assert cause_of(text).text == "ValueError: x (train.py, line 3)"
