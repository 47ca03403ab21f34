"""What a plain `python train.py` shows of itself."""

from __future__ import annotations

import io

import pytest

from holdfast.train.progress import (
    PROGRESS_PLAIN_S,
    PROGRESS_TERMINAL_S,
    PROGRESS_VARIABLE,
    Progress,
    progress_from_environment,
)

NUMBERS = {
    "gradient_norm": 1.5,
    "loss": 0.123456,
    "steps_total": 1_000.0,
    "samples_per_step": 64.0,
    "lane_ms": 3.0,
    "setting lr": 1.0,
}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_on_a_terminal_one_line_is_written_again_with_loss_rate_and_time_left() -> None:
    stream, clock = Terminal(), Clock()
    progress = Progress(stream, clock)
    for step in range(1, 102):
        progress.step(step, NUMBERS)
        clock.now_s += 0.01
    last = stream.getvalue().split("\r\x1b[K")[-1]
    assert last.startswith("step 101/1,000 (10%) · loss 0.1235 · gradient_norm 1.5 · ")
    assert "6,400 samples/s" in last and "9s left" in last
    # A step costs a look at the clock: a second has four lines, not a hundred.
    assert stream.getvalue().count("\r\x1b[K") == pytest.approx(1 / PROGRESS_TERMINAL_S, abs=1)
    progress.close()
    progress.close()
    assert stream.getvalue().endswith(
        "\x1b[Kstep 101/1,000 (10%) · loss 0.1235 · gradient_norm 1.5 · 1s\n"
    )


def test_in_a_file_there_is_a_whole_line_now_and_then_and_none_of_a_short_run() -> None:
    stream, clock = io.StringIO(), Clock()
    progress = Progress(stream, clock)
    progress.step(1, {"loss": 2.0})
    progress.close()
    assert stream.getvalue() == ""
    progress.step(1, {"loss": 2.0})
    clock.now_s += PROGRESS_PLAIN_S
    progress.step(11, {"loss": 1.0})
    assert stream.getvalue() == "step 11 · loss 1 · 1 steps/s\n"
    progress.close()
    assert stream.getvalue().splitlines()[-1] == "step 11 · loss 1 · 10s"


def test_it_is_turned_off_by_the_environment_and_a_closed_stderr_does_no_harm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert progress_from_environment() is not None
    monkeypatch.setenv(PROGRESS_VARIABLE, "0")
    assert progress_from_environment() is None
    stream, clock = Terminal(), Clock()
    progress = Progress(stream, clock)
    stream.close()
    clock.now_s += 1.0
    progress.step(1, {})
    progress.close()
