"""What a run shows of its workers' output: whose lines, when, and a traceback once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from holdfast.agent.log_files import ends
from holdfast.cli.run.events import RunEvent
from holdfast.cli.run.runner import _once
from holdfast.cli.run.worker_output import OutputLine, WorkerOutput


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def logged(folder: Path, number: int, name: str, text: str) -> None:
    place = folder / f"demo.{number}"
    place.mkdir(exist_ok=True)
    with (place / f"{name}.log").open("a") as file:
        file.write(text)


def test_lines_come_whole_and_an_unfinished_one_waits_for_its_end(tmp_path: Path) -> None:
    output = WorkerOutput(tmp_path, "demo", {})
    logged(tmp_path, 1, "out", "one\ntw")
    assert output.more() == [OutputLine(1, "out", "one")]
    logged(tmp_path, 1, "out", "o\nlast")
    assert output.more() == [OutputLine(1, "out", "two")]
    assert output.more(last=True) == [OutputLine(1, "out", "last")]


def test_a_progress_bar_that_draws_over_its_line_is_shown_as_it_ended(tmp_path: Path) -> None:
    logged(tmp_path, 1, "err", "10%\r50%\r100%\n")
    assert [line.text for line in WorkerOutput(tmp_path, "demo", {}).more()] == ["100%"]


TRACEBACK = "Traceback (most recent call last):\n  File 'x'\n    boom()\nValueError: boom\n"


def test_a_traceback_by_which_its_worker_ends_is_not_shown_among_the_lines(tmp_path: Path) -> None:
    clock = Clock()
    output = WorkerOutput(tmp_path, "demo", {}, clock)
    logged(tmp_path, 1, "err", "before\n" + TRACEBACK)
    assert [line.text for line in output.more()] == ["before"]
    output.ended([1])
    clock.now_s = 60.0
    assert output.more(last=True) == []


def test_a_traceback_that_was_only_logged_is_shown_after_a_moment(tmp_path: Path) -> None:
    clock = Clock()
    output = WorkerOutput(tmp_path, "demo", {}, clock)
    logged(tmp_path, 1, "err", TRACEBACK + "and on it goes\n")
    assert [line.text for line in output.more()] == ["and on it goes"]
    clock.now_s = 60.0
    assert [line.text for line in output.more()] == TRACEBACK.splitlines()


def test_a_traceback_that_is_read_in_the_moment_of_its_workers_end_is_not_shown_twice(
    tmp_path: Path,
) -> None:
    clock = Clock()
    output = WorkerOutput(tmp_path, "demo", {}, clock)
    started, rest = TRACEBACK[:50], TRACEBACK[50:]
    logged(tmp_path, 1, "err", started)
    output.ended([1])
    assert output.more() == []
    logged(tmp_path, 1, "err", rest + "its last word\n")
    assert [line.text for line in output.more()] == ["its last word"]
    clock.now_s = 60.0
    assert output.more() == []


def test_a_traceback_that_was_shown_before_its_workers_end_is_not_shown_with_it_again(
    tmp_path: Path,
) -> None:
    clock = Clock()
    output = WorkerOutput(tmp_path, "demo", {}, clock)
    failed = RunEvent(
        1.0, "UnplaceWorker", "worker 1 failed", TRACEBACK.strip(), worker=1, loss=True
    )
    other = replace(failed, detail=TRACEBACK.replace("boom", "bang"))
    logged(tmp_path, 1, "err", TRACEBACK)
    assert output.more() == []
    clock.now_s = 60.0
    assert [line.text for line in output.more()] == TRACEBACK.splitlines()
    assert _once(failed, output) == replace(failed, detail="")
    assert _once(other, output) == other
    assert _once(replace(failed, worker=2), output) == replace(failed, worker=2)


def test_a_traceback_that_was_logged_before_its_worker_was_killed_is_shown(tmp_path: Path) -> None:
    clock = Clock()
    output = WorkerOutput(tmp_path, "demo", {}, clock)
    logged(tmp_path, 1, "err", TRACEBACK)
    killed = RunEvent(1.0, "UnplaceWorker", "worker 1 was killed (SIGKILL)", worker=1, loss=True)
    assert output.more() == []
    assert _once(killed, output) == killed
    clock.now_s = 60.0
    assert [line.text for line in output.more()] == TRACEBACK.splitlines()


def test_what_was_in_the_logs_when_a_run_began_is_not_shown_however_new_it_is(
    tmp_path: Path,
) -> None:
    logged(tmp_path, 1, "out", "of the former run\nunfinished")
    known = ends(tmp_path)
    logged(tmp_path, 1, "out", " and still of that worker\n")
    logged(tmp_path, 2, "out", "of this run\n")
    output = WorkerOutput(tmp_path, "demo", known["demo"])
    assert [line.text for line in output.more()] == [" and still of that worker", "of this run"]
