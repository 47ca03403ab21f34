"""`holdfast run` with real processes: it ends right whoever is killed, and leaves nothing."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.run_world import (
    COUNTER,
    Run,
    answer_in,
    expected,
    nothing_is_left,
    of_folder,
    running,
    soon,
    step_in,
)
from tests.unit.cli.running import environment, holdfast

STEPS, LANES = 120, 4
SCRIPT = (str(COUNTER), "--lanes", str(LANES))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cluster"


def words(answer: Path, workers: int = 3, step_ms: int = 25, steps: int = STEPS) -> list[str]:
    script = ["--steps", str(steps), "--step-ms", str(step_ms), "--answer", str(answer)]
    return [*SCRIPT, "--workers", str(workers), "--", *script]


def under_way(run: Run, step: int = 1) -> None:
    soon(
        lambda: step_in(run.text) >= step or run.process.poll() is not None,
        f"step {step} is reached",
    )
    assert run.process.poll() is None, run.text


def test_a_script_runs_to_its_end_and_nothing_is_left_running(tmp_path: Path, folder: Path) -> None:
    answer = tmp_path / "answer"
    with running(folder, *words(answer, step_ms=5)) as run:
        assert run.ends() == 0, run.text
        assert of_folder(folder) == {}
    assert answer_in(answer) == expected(STEPS, LANES)
    assert f"counter succeeded at step {STEPS} (committed)" in run.text
    assert f"checkpoint  step {STEPS}: file:" in run.text
    assert "Traceback" not in run.text and "\x1b" not in run.text


def test_a_job_that_has_succeeded_starts_anew_under_the_same_name(
    tmp_path: Path, folder: Path
) -> None:
    answer = tmp_path / "answer"
    for again in (False, True):
        with running(folder, *words(answer, workers=1, step_ms=1)) as run:
            assert run.ends() == 0, run.text
        assert ("has succeeded at step 120; starting anew" in run.text) is again
        assert answer_in(answer) == expected(STEPS, LANES)
        answer.unlink()


def test_a_killed_worker_agent_and_coordinator_change_nothing_in_the_answer(
    tmp_path: Path, folder: Path
) -> None:
    answer, steps = tmp_path / "answer", 400
    with running(folder, *words(answer, steps=steps)) as run:
        under_way(run, 5)
        worker, pid = soon(lambda: sorted(run.worker_pids().items()), "workers live")[0]
        os.kill(pid, signal.SIGKILL)
        run.says(f"worker {worker} was killed (SIGKILL)")
        os.kill(run.pid_of("agent"), signal.SIGKILL)
        run.says("the agent was killed (SIGKILL); it is started again")
        os.kill(run.pid_of("coordinator"), signal.SIGKILL)
        run.says("the coordinator was killed (SIGKILL); it is started again")
        assert run.ends() == 0, run.text
        assert of_folder(folder) == {}
    assert answer_in(answer) == expected(steps, LANES)
    assert "1 lost worker, 1 killed agent, 1 killed coordinator" in run.text
    # Nobody else was restarted: the workers did not notice.
    assert run.text.count("was killed") == 3


def test_ctrl_c_saves_a_checkpoint_and_the_same_command_goes_on_from_it(
    tmp_path: Path, folder: Path
) -> None:
    answer = tmp_path / "answer"
    with running(folder, *words(answer)) as run:
        under_way(run, 5)
        run.interrupt()
        assert run.ends() == 130, run.text
        assert of_folder(folder) == {}
    assert "saving, then stopping: ending in 7 s; Ctrl-C again ends at once" in run.text
    found = re.search(r"run the same command again to go on from step ([\d,]+)", run.text)
    assert found, run.text
    step = int(found[1].replace(",", ""))
    assert 5 <= step <= STEPS
    with running(folder, *words(answer, workers=2)) as again:
        assert again.ends() == 0, again.text
    assert f"job counter goes on from step {step}" in again.text
    assert f"after step {step}: lanes" in again.text
    assert answer_in(answer) == expected(STEPS, LANES)


def test_a_command_that_is_killed_leaves_no_process_and_its_job_goes_on_the_next_time(
    tmp_path: Path, folder: Path
) -> None:
    answer = tmp_path / "answer"
    every = ["--checkpoint-every", "10steps"]
    with running(folder, *every, *words(answer)) as run:
        run.says("shares are durable")
        run.process.kill()
        run.ends()
        nothing_is_left(folder)
    with running(folder, *every, *words(answer)) as again:
        assert again.ends() == 0, again.text
    assert re.search(r"job counter goes on from step \d+", again.text), again.text
    assert answer_in(answer) == expected(STEPS, LANES)


def test_a_second_ctrl_c_ends_everything_at_once(tmp_path: Path, folder: Path) -> None:
    script = tmp_path / "deaf.py"
    script.write_text(
        "import signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('deaf', flush=True)\n"
        "time.sleep(600)\n"
    )
    with running(folder, str(script)) as run:
        run.says("[1] deaf")
        run.interrupt()
        run.says("Ctrl-C again ends at once")
        run.interrupt()
        assert run.ends() == 130, run.text
        assert of_folder(folder) == {}
    assert "was ended at once" in run.text


def test_one_ctrl_c_ends_a_script_that_hangs_whatever_it_does(tmp_path: Path, folder: Path) -> None:
    script = tmp_path / "hung.py"
    script.write_text(
        "import ctypes, signal\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('deaf', flush=True)\n"
        "ctypes.PyDLL(None).sleep(600)  # in C, and no other thread of Python runs\n"
    )
    with running(folder, str(script)) as run:
        run.says("[1] deaf")
        run.interrupt()
        run.says("ending in 7 s; Ctrl-C again ends at once")
        assert run.ends() == 130, run.text
        assert of_folder(folder) == {}
    assert "the script has not stopped in time: it is ended" in run.text
    assert "was ended at once before its first step" in run.text


def test_data_that_is_not_what_it_was_ends_the_job_at_once_and_is_named(
    tmp_path: Path, folder: Path
) -> None:
    script = tmp_path / "rotten.py"
    script.write_text(
        """import torch
from holdfast import train

data = torch.arange(64.0).reshape(32, 2)
sums = train.digests_of(data)
data[11, 1] = 0.5


def main(run):
    model = torch.nn.Linear(2, 1)
    run.track(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    for batch in run.batches(train.checked(data, sums), lane_batch=4, shuffle=False):
        run.step(model(batch.data).mean())


train.launch(main, lanes=2)
"""
    )
    with running(folder, str(script)) as run:
        assert run.ends() == 1, run.text
        assert of_folder(folder) == {}
    assert "sample 11 of 32 is not what it was" in run.text
    assert "trying again cannot help" in run.text
    assert "tries again" not in run.text


def test_an_error_of_the_script_is_shown_as_the_users_own_and_ends_the_job(
    tmp_path: Path, folder: Path
) -> None:
    script = tmp_path / "broken.py"
    script.write_text("def loss():\n    raise ValueError('no such loss')\n\n\nloss()\n")
    with running(folder, str(script)) as run:
        assert run.ends() == 1, run.text
        assert of_folder(folder) == {}
    assert f'File "{script}", line 2, in loss' in run.text
    assert "waits 1 s after failure 1 of at most 3, then tries again" in run.text
    assert "broken failed before its first step" in run.text
    # The same again before the first step: no third try. And the last line is the cause.
    assert "failure 2" not in run.text
    assert "  tried  the same twice before its first step\n" in run.text
    last = run.text.splitlines()[-1]
    cause = "ValueError: no such loss (broken.py, line 2)"
    assert last == f"  cause  {cause}"
    # It has ended, and what it has left can be looked at: nothing is started that stays.
    for words in (["jobs"], ["why", "broken"], ["jobs", "broken"], ["logs", "broken"]):
        looked = holdfast(*words, "--cluster", str(folder))
        assert looked.returncode == 0, looked.stderr
        assert "is down; as it was left at" in looked.stderr
        assert (cause if words[0] != "logs" else "ValueError: no such loss") in looked.stdout
        assert looked.stdout.rstrip().endswith(cause) or words[0] == "logs"
    assert of_folder(folder) == {}
    assert "/holdfast/agent/" not in run.text
    assert run.text.count("Traceback") == 1


def test_a_job_that_needs_more_than_there_is_says_what_it_waits_for(
    tmp_path: Path, folder: Path
) -> None:
    script = tmp_path / "large.py"
    script.write_text("print('never')\n")
    with running(folder, str(script), "--memory", "1024TiB") as run:
        run.says("could not hold its minimum of 1 worker of 1 cpu and 1024 TiB memory each")
        run.interrupt()
        assert run.ends() == 130, run.text
    assert "never" not in run.text


def test_with_json_every_line_is_a_document_and_the_last_one_tells_the_end(
    tmp_path: Path, folder: Path
) -> None:
    with running(folder, "--json", *words(tmp_path / "answer", step_ms=5)) as run:
        assert run.ends() == 0, run.text
    documents = [json.loads(line) for line in run.text.splitlines()]
    assert {"note", "event", "output", "progress", "ended"} >= {one["what"] for one in documents}
    last = documents[-1]
    assert (last["what"], last["phase"], last["exit_code"]) == ("ended", "succeeded", 0)
    assert last["checkpoint_step"] == STEPS
    printed = [one["text"] for one in documents if one["what"] == "output"]
    assert any(text.startswith("answer ") for text in printed)


def test_what_is_not_an_option_of_ours_is_the_scripts_in_its_order(
    tmp_path: Path, folder: Path
) -> None:
    script = tmp_path / "words.py"
    script.write_text("import sys\nprint(sys.argv)\n")
    given = ["--epochs", "3", "--workers", "1", "-x", "a b", "--", "--workers", "9", "--debug"]
    with running(folder, str(script), *given) as run:
        assert run.ends() == 0, run.text
    got = ["words.py", "--epochs", "3", "-x", "a b", "--workers", "9", "--debug"]
    assert f"[1] {got}" in run.text


def test_a_job_goes_on_with_the_code_that_it_began_with_until_it_is_started_afresh(
    tmp_path: Path, folder: Path
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    script = project / "train.py"
    script.write_text("import time\nprint('first code', flush=True)\ntime.sleep(600)\n")
    with running(folder, str(script)) as run:
        run.says("[1] first code")
        run.process.terminate()
        assert run.ends() == 128 + signal.SIGTERM, run.text
    script.write_text("print('second code')\n")
    with running(folder, str(script)) as again:
        again.says("first code")
        assert "has changed since it began: it goes on with the code that it began" in again.text
        again.interrupt()
        assert again.ends() == 130, again.text
    with running(folder, str(script), "--fresh") as fresh:
        assert fresh.ends() == 0, fresh.text
    assert "starting anew (--fresh)" in fresh.text
    assert "second code" in fresh.text and "first code" not in fresh.text


def test_a_run_shows_no_line_of_the_one_before_it_however_soon_it_begins(
    tmp_path: Path, folder: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text("print('first code')\n")
    with running(folder, str(script)) as run:
        assert run.ends() == 0, run.text
    assert "first code" in run.text
    for log in folder.glob("nodes/*/logs/*/out.log"):
        later_s = log.stat().st_mtime + 3600
        os.utime(log, (later_s, later_s))  # no clock can tell it from those of the next run
    script.write_text("print('second code')\n")
    with running(folder, str(script), "--fresh") as fresh:
        assert fresh.ends() == 0, fresh.text
    assert "second code" in fresh.text and "first code" not in fresh.text


def test_two_runs_over_one_folder_are_refused_with_what_to_do(tmp_path: Path, folder: Path) -> None:
    with running(folder, *words(tmp_path / "answer", steps=100_000)) as run:
        under_way(run)
        second = holdfast("run", str(COUNTER), "--dir", str(folder))
        assert second.returncode == 11
        assert "another `holdfast run` is at work" in second.stderr
        assert "--dir" in second.stderr
        assert run.process.poll() is None


def test_what_is_wrong_with_a_command_is_told_before_anything_is_started(
    tmp_path: Path, folder: Path
) -> None:
    (tmp_path / "train.py").write_text("")
    where = ["--dir", str(folder)]
    missing = holdfast("run", str(tmp_path / "trian.py"), *where)
    assert missing.returncode == 2 and "train.py" in missing.stderr
    few = holdfast("run", str(tmp_path / "train.py"), "--workers", "4", "--lanes", "2", *where)
    assert few.returncode == 2 and "--lanes 4" in few.stderr
    often = holdfast("run", str(tmp_path / "train.py"), "--checkpoint-every", "often", *where)
    assert often.returncode == 2 and "100steps" in often.stderr
    assert not folder.exists()


def test_on_a_terminal_a_panel_is_drawn_and_taken_away_again(tmp_path: Path, folder: Path) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "holdfast", "run", "--dir", str(folder)),
            *words(tmp_path / "answer", steps=60),
        ],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**environment(), "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40"},
        start_new_session=True,
    )
    os.close(theirs)
    shown = b""
    try:
        while chunk := _chunk(ours):
            shown += chunk
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)
        nothing_is_left(folder)
    text = shown.decode(errors="replace")
    assert "counter" in text and "Ctrl-C saves a checkpoint and stops" in text
    assert "▮" in text and "╭" in text
    end = text[text.rindex("╰") :]
    assert "succeeded at step 60" in end
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l"), "the cursor is back"


def _chunk(handle: int) -> bytes:
    try:
        return os.read(handle, 65_536)
    except OSError:  # the other side is closed
        return b""
