"""What people read about jobs: times, tables, stories, lines of logs. No cluster is needed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from holdfast.agent.log_files import ERR, OUT, LogPosition, Piece, Source
from holdfast.cli import main, output
from holdfast.cli.jobs import logs, why
from holdfast.cli.jobs.submit import pairs
from holdfast.cli.options import missing
from holdfast.client import job_status, texts
from holdfast.client.logs import Assembler
from holdfast.control.decide.facts import (
    Checkpoint,
    Intent,
    JobRecord,
    Phase,
    Placement,
    RecordedStatus,
)
from holdfast.control.decide.spec import JobSpec
from holdfast.wire.causes import cause_of
from holdfast.wire.errors import Usage
from holdfast.wire.history import HistoryEntry
from holdfast.wire.reports import WorkerFacts, WorkerPhase

COMMANDS = [
    *("submit", "jobs", "job", "why", "logs", "scale", "set", "checkpoint", "checkpoints"),
    *("pause", "resume", "stop", "remove", "nodes", "drain", "undrain", "queues"),
    "locks",
]
GROUPS = [
    *("bundle push", "bundle list", "bundle versions", "bundle rollback"),
    *("queue set", "queue remove"),
    *("config get", "config set", "config list", "config remove"),
]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(-5, "0s"), (0, "0s"), (59.4, "59s"), (59.6, "1m00s"), (192, "3m12s"), (3_900, "1h05m")],
)
def test_a_span_is_said_in_two_units(seconds: float, words: str) -> None:
    assert texts.span(seconds) == words


def test_days_sizes_and_counts_are_said_as_people_say_them() -> None:
    assert texts.span(2 * 86_400 + 3 * 3_600) == "2d3h"
    assert texts.size(1_536 * 1024**2) == "1.5 GiB"
    assert texts.size(12) == "12 B"
    assert texts.many(1, "worker") == "1 worker"
    assert texts.many(2_000, "worker") == "2,000 workers"


def test_a_table_without_a_terminal_is_never_cut_and_has_no_padding(
    capsys: pytest.CaptureFixture[str],
) -> None:
    output.out.cache_clear()
    output.show_table(["a", "n", "why"], [("x", 1, "w" * 300), ("[bold]y", 22, "")], right=("n",))
    shown = capsys.readouterr().out.splitlines()
    output.out.cache_clear()
    assert shown == ["a         n  why", f"x         1  {'w' * 300}", "[bold]y  22"]


def test_a_name_that_is_not_there_gets_the_nearest() -> None:
    assert "did you mean counter?" in str(
        missing("job", "countr", ["counter", "x"], "holdfast jobs")
    )
    assert "holdfast jobs" in str(missing("job", "zzz", ["counter"], "holdfast jobs"))


def test_settings_are_pairs_and_a_value_may_hold_anything() -> None:
    assert pairs(["lr=0.1", "tag=a=b c"], "") == {"lr": "0.1", "tag": "a=b c"}
    with pytest.raises(Usage, match="not NAME=VALUE"):
        pairs(["lr"], "fix")


# --- a job ----------------------------------------------------------------------------------------

JOB = JobRecord(
    JobSpec("counter", ("python", "counter.py"), lanes=8, workers_min=1, workers_max=4),
    submitted_s=1.0,
    status=RecordedStatus(Phase.RUNNING, "on 2 workers", 2.0),
    placements=(Placement(1, "n1"), Placement(2, "n2")),
    checkpoints=(Checkpoint(100, "m", 1, 3.0),),
)


def facts(worker: int, step: int | None) -> tuple[str, WorkerFacts]:
    return "n1", WorkerFacts("counter", worker, WorkerPhase.RUNNING, step=step)


def test_the_step_of_a_job_is_the_most_advanced_that_is_known() -> None:
    assert job_status.step_of(JOB, {1: facts(1, 120), 2: facts(2, None)}) == 120
    assert job_status.step_of(JOB, {}) == 100
    assert job_status.step_of(replace(JOB, checkpoints=()), {}) is None


def test_what_a_job_wants_is_nothing_when_it_is_paused_or_has_ended() -> None:
    assert job_status.wants(JOB) == 4
    assert job_status.wants(replace(JOB, workers_wanted=2)) == 2
    assert job_status.wants(replace(JOB, intent=Intent.PAUSE)) == 0
    assert job_status.wants(replace(JOB, status=RecordedStatus(Phase.FAILED, "", 1.0))) == 0


CHAINED = """Traceback (most recent call last):
  File "a.py", line 1, in <module>
    f()
KeyError: 'x'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/data/cluster/bundles/{digest}/files/sub/b.py", line 2, in f
    raise ValueError("bad")
ValueError: bad
it ended with status 1
(worker 2; the job failed 3 times in a row)"""


def test_the_cause_of_a_failure_is_its_exception() -> None:
    assert cause_of(CHAINED).text.startswith("ValueError: bad")
    assert cause_of("it was killed at its memory limit").text == "it was killed at its memory limit"
    assert cause_of("what it wrote last\nit ended with status 3").text == (
        "what it wrote last (status 3)"
    )
    assert cause_of("").text == ""


def test_files_of_the_user_are_named_as_in_his_own_folder() -> None:
    shown = output.with_own_paths(CHAINED.replace("{digest}", "0a" * 32))
    assert 'File "sub/b.py", line 2' in shown
    assert 'File "a.py", line 1' in shown


# --- the story ------------------------------------------------------------------------------------


def entry(at_s: float, what: str, reason: str, term: int = 1) -> HistoryEntry:
    return HistoryEntry(at_s, term, what, reason)


def story(checkpoints: int) -> list[HistoryEntry]:
    found = [entry(0, "PlaceWorker", "starts"), entry(1, "StartWorker", "worker 1 is placed")]
    for number in range(1, checkpoints + 1):
        found.append(entry(10 * number, "BeginCheckpoint", f"checkpoint at step {number * 100}"))
        found.append(
            entry(10 * number + 1, "CommitCheckpoint", f"checkpoint at step {number * 100}")
        )
        found.append(entry(10 * number + 2, "DropCheckpoint", "newer ones"))
    return [*found, entry(500, "DrainWorker", "worker 2 leaves")]


def test_checkpoints_in_a_row_share_a_line_and_orders_have_none() -> None:
    lines = why.history_lines(story(30), every=False)
    assert [line.what for line in lines] == ["PlaceWorker", "CommitCheckpoint", "DrainWorker"]
    assert lines[1].reason == "30 checkpoints of steps 100 to 3000, within 4m50s"


def test_with_all_every_decision_has_its_line() -> None:
    assert len(why.history_lines(story(30), every=True)) == len(story(30))


def test_a_traceback_is_told_once() -> None:
    gone = f"worker 2 is gone (error): {CHAINED.rpartition(chr(10))[0]}"
    lines = why.history_lines(
        [entry(1, "UnplaceWorker", gone), entry(2, "SetStatus", CHAINED)], every=False
    )
    assert lines[0].reason == gone
    assert lines[1].reason.startswith("ValueError: bad (")
    assert lines[1].reason.endswith("line 2) (worker 2; the job failed 3 times in a row)")
    assert "Traceback" not in lines[1].reason


def test_a_checkpoint_under_way_and_one_given_up_are_told() -> None:
    under_way = [entry(1, "BeginCheckpoint", "checkpoint at step 5")]
    assert [line.what for line in why.history_lines(under_way, every=False)] == ["BeginCheckpoint"]
    given_up = [*under_way, entry(2, "AbandonCheckpoint", "it took too long")]
    assert [line.what for line in why.history_lines(given_up, every=False)][
        -1
    ] == "AbandonCheckpoint"


def test_a_follower_goes_on_after_what_it_has_seen_also_when_that_is_not_kept_any_more() -> None:
    known = story(3)
    assert why._after(known, known[-2]) == known[-1:]
    assert why._after(known, entry(30.5, "PlaceWorker", "gone round")) == [
        each for each in known if each.at_s > 30.5
    ]
    assert why._after(known, None) == known


# --- lines of logs --------------------------------------------------------------------------------


def piece(worker: int, data: bytes, output: str = OUT) -> Piece:
    return Piece(Source(worker, output), LogPosition(1, 1), data)


def test_half_a_line_waits_for_its_other_half_whoever_writes_meanwhile(
    capsys: pytest.CaptureFixture[str],
) -> None:
    printer = logs.LinePrinter(prefix=True)
    lines = Assembler()
    printer.show(lines.add(piece(1, b"one\nhal")))
    printer.show(lines.add(piece(2, b"two\n")))
    printer.show(lines.add(piece(1, b"its stderr\n", ERR)))
    printer.show(lines.add(piece(1, b"f\n")))
    printer.show(lines.add(piece(12, b"never ended")))
    assert capsys.readouterr().out == "  1 one\n  2 two\n  1 its stderr\n  1 half\n"
    printer.show(lines.end())
    assert capsys.readouterr().out == " 12 never ended\n"
    assert printer.lines == 5


def test_lines_of_a_job_with_one_worker_have_nothing_in_front(
    capsys: pytest.CaptureFixture[str],
) -> None:
    printer = logs.LinePrinter(prefix=False)
    printer.show(Assembler().add(piece(1, "a\n\nümlaut\n".encode())))
    assert capsys.readouterr().out == "a\n\nümlaut\n"


# --- the commands, without a cluster --------------------------------------------------------------


@dataclass(frozen=True)
class CommandOutput:
    code: int
    out: str
    err: str


@pytest.fixture
def says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., CommandOutput]]:
    """Give a command within this process, in an empty folder, with an empty home."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("HOLDFAST_CLUSTER", raising=False)
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level

    def say(*words: str) -> CommandOutput:
        with pytest.raises(SystemExit) as ended:
            main.run(words)
        shown = capsys.readouterr()
        return CommandOutput(int(ended.value.code or 0), shown.out, shown.err)

    yield say
    root.handlers[:] = handlers
    root.setLevel(level)


def test_every_command_is_in_the_help_and_explains_itself_with_examples(
    says: Callable[..., CommandOutput],
) -> None:
    root = says("--help").out
    for command in COMMANDS:
        if command != "job":  # another way to say `jobs JOB`
            assert f" {command} " in root, command
    for command in (*COMMANDS, *GROUPS):
        done = says(*command.split(), "--help")
        assert done.code == 0, done.err
        assert "Examples" in done.out, command
        assert "--cluster" in done.out, command


@pytest.mark.parametrize(
    "command",
    [
        "jobs",
        "jobs x",
        "job x",
        "why x",
        "logs x",
        "scale x 2",
        "set x lr=1",
        "checkpoint x",
        "checkpoints x",
        "pause x",
        "resume x",
        "stop x",
        "remove x",
        "nodes",
        "drain n",
        "undrain n",
        "queues",
        "queue set q --cpu 1",
        "queue remove q",
        "locks",
        "config get q x",
        "config set q x 1",
        "config list q",
        "config remove q x",
        "bundle list",
        "bundle push b",
        "bundle versions b",
        "bundle rollback b",
    ],
)
def test_without_a_cluster_every_command_says_how_to_start_one(
    command: str, says: Callable[..., CommandOutput]
) -> None:
    done = says(*command.split())
    assert done.code == 1
    assert "there is no cluster here" in done.err
    assert "holdfast up" in done.err
    assert done.out == ""


def test_a_job_file_that_is_wrong_is_refused_before_anything_is_asked(
    tmp_path: Path, says: Callable[..., CommandOutput]
) -> None:
    (tmp_path / "job.yaml").write_text("name: x\ncommand: python x.py\nworker: 3\n")
    done = says("submit", "job.yaml")
    assert done.code == 2
    assert "line 3" in done.err
    assert "did you mean `workers`?" in done.err
    assert "there is no file none.yaml" in says("submit", "none.yaml").err
