"""What a run shows: progress, pace, the panel."""

from __future__ import annotations

import io
import json
from dataclasses import replace

from rich.console import Console

from holdfast.cli.run import panel
from holdfast.cli.run.display import JsonDisplay, PanelDisplay, PlainDisplay
from holdfast.cli.run.events import RunEvent
from holdfast.cli.run.progress import RunProgress, StepRate, progress_of
from holdfast.cli.run.summary import Summary, next_after, summary_lines
from holdfast.cli.run.worker_output import OutputLine
from holdfast.control.decide.facts import (
    Checkpoint,
    JobRecord,
    Phase,
    Placement,
    RecordedStatus,
    View,
)
from holdfast.control.decide.spec import JobSpec
from holdfast.control.rpc.observing import Observation
from holdfast.wire.reports import NodeFacts, WorkerFacts, WorkerPhase
from holdfast.wire.resources import Resources

RUNNING = WorkerPhase.RUNNING
JOB = JobRecord(
    JobSpec("demo", ("python", "demo.py"), lanes=4, workers_max=4),
    0.0,
    RecordedStatus(Phase.RUNNING, "on 2 workers", 1.0),
    placements=(Placement(1, "here"), Placement(2, "here"), Placement(3, "here", draining=True)),
    view=View(1, {1: (0, 1), 2: (2, 3)}),
    checkpoints=(Checkpoint(20, "m", 1, 90.0),),
)


def worker(number: int, step: int | None, **metrics: float) -> WorkerFacts:
    return WorkerFacts("demo", number, RUNNING, 1, step, metrics=metrics)


def seen(*workers: WorkerFacts) -> Observation:
    return Observation(1, (NodeFacts("here", Resources(cpu=2.0), workers),))


def progress(job: JobRecord = JOB, observation: Observation | None = None) -> RunProgress:
    return progress_of(job, observation, StepRate(), wall_s=100.0, now_s=0.0)


def drawn(shown: RunProgress, *events: RunEvent, width: int = 100, height: int = 30) -> str:
    stream = io.StringIO()
    console = Console(file=stream, width=width, force_terminal=False, color_system=None)
    console.print(panel.panel(shown, events, width=width, height=height, hint="Ctrl-C stops"))
    return stream.getvalue()


def test_a_picture_takes_step_and_metrics_from_the_most_advanced_worker() -> None:
    facts = seen(
        worker(1, 41, loss=0.5, steps_total=100, samples_per_step=8), worker(2, 40, loss=9)
    )
    shown = progress(JOB, facts)
    assert (shown.step, shown.total, dict(shown.metrics)) == (41, 100, {"loss": 0.5})
    assert (shown.committed_step, shown.committed_s) == (20, 90.0)
    assert [(cell.worker, cell.step, cell.lanes, cell.leaving) for cell in shown.cells] == [
        (1, 41, 2, False),
        (2, 40, 2, False),
        (3, None, 0, True),
    ]


def test_without_any_report_a_job_stands_at_its_last_commit() -> None:
    assert progress(JOB, None).step == 20
    assert progress(replace(JOB, checkpoints=()), seen()).step == 0


def test_the_rate_is_that_of_the_last_seconds_and_falls_when_nothing_comes() -> None:
    pace = StepRate()
    for at in range(11):
        pace.saw(at / 10, at * 2)
    rate = pace.rate(1.0)
    assert rate is not None and abs(rate - 20.0) < 0.5
    later = pace.rate(3.0)
    assert later is not None and later < rate / 1.5
    assert pace.rate(60.0) == 0.0


def test_goodput_counts_a_standstill_and_repeated_steps_as_lost() -> None:
    steady, broken = StepRate(), StepRate()
    for at in range(200):
        steady.saw(at / 10, at)
        # It stands still for ten seconds, and goes back by fifty steps.
        lost_s, back = (10.0, 50) if at >= 100 else (0.0, 0)
        broken.saw(at / 10 + lost_s, at - back)
    assert steady.goodput() == 1.0
    part = broken.goodput()
    assert part is not None and 0.4 < part < 0.6


def test_a_short_run_says_nothing_about_its_goodput() -> None:
    pace = StepRate()
    pace.saw(0.0, 0)
    pace.saw(1.0, 10)
    assert pace.goodput() is None
    assert StepRate().goodput() is None and StepRate().steps == 0


def test_the_panel_shows_step_metrics_workers_checkpoint_and_events() -> None:
    facts = seen(worker(1, 41, loss=0.0412345, steps_total=100), worker(2, 40))
    event = RunEvent(0.0, "UnplaceWorker", "worker 4 was killed (SIGKILL)", loss=True)
    text = drawn(progress(JOB, facts), event)
    for words in ("demo running", "41 of 100", "loss 0.0412", "1 ▮▮ 41", "2 ▮▮ 40"):
        assert words in text
    for words in ("3 ▯ leaves", "step 20, 10s ago", "worker 4 was killed (SIGKILL)", "Ctrl-C"):
        assert words in text


def test_the_panel_fits_a_small_terminal_and_leaves_events_out_first() -> None:
    facts = seen(*(worker(number, 1) for number in range(1, 3)))
    events = [RunEvent(0.0, "WriteView", f"view {number} " + "x" * 200) for number in range(9)]
    text = drawn(progress(JOB, facts), *events, width=50, height=12)
    assert max(len(line) for line in text.splitlines()) <= 50
    assert len(text.splitlines()) < 12
    assert "view 8" in text and "view 0" not in text
    tiny = drawn(progress(JOB, facts), *events, width=50, height=6)
    assert "view" not in tiny and "step" in tiny


def test_a_job_that_waits_says_for_what() -> None:
    waiting = replace(
        JOB, status=RecordedStatus(Phase.QUEUED, "waits for 8 cpu: none is here", 1.0)
    )
    assert "waits for 8 cpu" in drawn(progress(waiting))
    assert "waits for 8 cpu" in panel.progress_line(progress(waiting))


def test_numbers_are_short_and_never_lie_about_what_they_are() -> None:
    shown = {
        0.0: "0",
        12.0: "12",
        0.04123: "0.0412",
        12.345: "12.3",
        3174.2: "3,174",
        1e-7: "1.0e-07",
    }
    assert {value: panel.number(value) for value in shown} == shown
    assert panel.number(float("nan")) == "nan" and panel.number(float("-inf")) == "-inf"


# --- displays -------------------------------------------------------------------------------------

SUMMARY = Summary(
    name="demo",
    phase=Phase.SUCCEEDED,
    reason="finished: step 100 is committed",
    step=100,
    steps_here=100,
    seconds=83.0,
    rate=1.2,
    goodput=0.97,
    survived={"lost worker": 2, "killed agent": 1},
    checkpoint="file:/x/store/manifests/m",
    checkpoint_step=100,
    logs="/x/logs",
    next_step="",
    exit_code=0,
)
FAILED = RunEvent(
    1.0, "UnplaceWorker", "worker 1 failed", detail="Traceback…\nValueError: boom", worker=1
)


def test_every_line_of_the_json_voice_is_one_document() -> None:
    stream = io.StringIO()
    display = JsonDisplay(stream)
    display.note("hello")
    display.events([FAILED])
    display.lines([OutputLine(1, "out", "ü\t\x1b[1m")])
    display.show_progress(progress(JOB, seen(worker(1, 41, loss=0.5))))
    display.ended(SUMMARY)
    documents = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [each["what"] for each in documents] == ["note", "event", "output", "progress", "ended"]
    assert documents[1]["detail"].endswith("boom") and documents[1]["at_s"] == 1.0
    assert documents[3]["step"] == 41 and documents[3]["cells"][0]["phase"] == "running"
    assert documents[4]["phase"] == "succeeded" and documents[4]["exit_code"] == 0


def test_the_plain_voice_shows_a_traceback_once_for_all_workers_that_end_by_it() -> None:
    stream = io.StringIO()
    display = PlainDisplay(stream)
    display.events([FAILED, replace(FAILED, text="worker 2 failed", worker=2)])
    text = stream.getvalue()
    assert text.count("ValueError: boom") == 1
    assert "worker 1 failed" in text and "worker 2 failed" in text


def test_a_summary_says_what_was_done_what_was_survived_and_where_things_are() -> None:
    lines = summary_lines(SUMMARY)
    assert lines[0] == "demo succeeded at step 100 (committed) in 1m23s (1.2 steps/s)"
    assert "survived  2 lost workers, 1 killed agent" in lines
    assert "checkpoint  step 100: file:/x/store/manifests/m" in lines
    assert "logs  /x/logs" in lines


def test_success_says_the_final_loss_what_was_published_and_the_next_command() -> None:
    command = next_after("digits", "")
    done = replace(
        SUMMARY,
        metrics={"accuracy": 0.97, "loss": 0.01234567},
        metrics_step=100,
        published=("digits version 3",),
        next_step=command,
    )
    lines = summary_lines(done)
    assert "loss  0.01235, accuracy 0.97" in lines
    assert "published  digits version 3" in lines
    assert lines[-1] == "next  holdfast up && holdfast serve digits"
    # A number that is not of the last step is not told as if it were.
    assert "loss  0.01235, accuracy 0.97 (step 98)" in summary_lines(replace(done, metrics_step=98))
    assert next_after("digits", "/x") == (
        "holdfast up --cluster /x && holdfast serve digits --cluster /x"
    )


def test_the_last_line_of_a_failed_run_is_its_cause_and_then_only_the_remedy() -> None:
    words = 'Traceback (most recent call last):\n  File "t.py", line 2, in f\n'
    failed = replace(SUMMARY, phase=Phase.FAILED, exit_code=1, checkpoint_step=80)
    own = replace(failed, reason=f"{words}ValueError: boom\nit ended with status 1\n(worker 1; x)")
    lines = summary_lines(own)
    assert lines[0].startswith("demo failed at step 100 (not committed; step 80 is)")
    assert lines[-1] == "cause  ValueError: boom (t.py, line 2)"
    ours = f"{words}holdfast.wire.errors.Usage: no optimizer\nwhy: w\nfix: track it\n(worker 1; x)"
    assert summary_lines(replace(failed, reason=ours))[-3:] == [
        "cause  no optimizer (t.py, line 2)",
        "because  w",
        "fix  track it",
    ]


def test_the_screen_takes_its_panel_away_and_leaves_the_summary() -> None:
    stream = io.StringIO()
    console = Console(file=stream, width=90, force_terminal=True, color_system=None)
    screen = PanelDisplay(console)
    screen.show_progress(progress(JOB, seen(worker(1, 41))))
    screen.lines([OutputLine(1, "out", "[not markup] \x1b[31mred\x1b[0m")])
    screen.ended(SUMMARY)
    screen.close()
    text = stream.getvalue()
    assert "[not markup] red" in text
    assert text.rstrip().endswith("/x/logs")
    assert "\x1b[?25h" in text  # the cursor is back
