"""What a run uses of the GPUs there are, and how long it waits after Ctrl-C: pure decisions."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.agent import devices
from holdfast.cli.run.plan import choose
from holdfast.cli.run.runner import (
    RUN_INTERRUPT_S,
    RUN_SAVE_S,
    Countdown,
    being_written,
    countdown_text,
)

TWO = ("NVIDIA H200", "NVIDIA H200")
NOTHING: dict[str, int | None] = {"workers": None, "lanes": None, "gpu": None, "share": None}


@pytest.mark.parametrize(
    ("names", "given", "workers", "gpu", "share", "said"),
    [
        ((), {}, 1, 0, None, "on the CPU: no GPU is visible"),
        ((), {"workers": 4}, 4, 0, None, "on the CPU: no GPU is visible"),
        ((), {"gpu": 1}, 1, 1, None, "no GPU is visible, and each worker needs 1"),
        (TWO[:1], {}, 1, 1, None, "on 1 GPU: NVIDIA H200"),
        (TWO, {}, 2, 1, None, "on 2 GPUs: NVIDIA H200"),
        (TWO, {"workers": 1}, 1, 1, None, "on 1 GPU: NVIDIA H200"),
        (TWO, {"lanes": 1}, 1, 1, None, "on 1 GPU: NVIDIA H200"),
        (TWO, {"gpu": 0}, 1, 0, None, "on the CPU: as --gpu 0 says"),
        (TWO, {"gpu": 2}, 1, 2, None, "on 2 GPUs: NVIDIA H200"),
        (TWO, {"workers": 5}, 5, 1, 3, "5 workers share 2 GPUs: NVIDIA H200"),
        (TWO, {"workers": 4, "share": 4}, 4, 1, 4, "4 workers share 1 GPU: NVIDIA H200"),
        (("A", "B"), {}, 2, 1, None, "on 2 GPUs: 1 A and 1 B"),
    ],
)
def test_what_there_is_is_used_unless_its_user_says_otherwise(
    names: tuple[str, ...],
    given: dict[str, int],
    workers: int,
    gpu: int,
    share: int | None,
    said: str,
) -> None:
    chosen = choose(names, **(NOTHING | given))
    assert (chosen.workers, chosen.gpu, chosen.share) == (workers, gpu, share)
    assert chosen.note == said


def test_gpus_are_found_with_their_names_by_the_tool_where_the_driver_shows_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(
        "#!/bin/sh\n"
        'echo "GPU 0: NVIDIA H200 (UUID: GPU-1)"\n'
        'echo "GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-2)"\n'
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv(devices.VISIBLE_VARIABLE, raising=False)
    none = tmp_path / "no-driver"
    assert devices.gpu_names(none) == ("NVIDIA H200", "NVIDIA A100-SXM4-40GB")
    assert devices.gpus(none) == (0, 1)
    monkeypatch.setenv(devices.VISIBLE_VARIABLE, "1")
    assert devices.gpu_names(none) == ("NVIDIA A100-SXM4-40GB",)
    assert devices.gpus(none) == (1,)


def test_gpus_are_found_with_their_names_by_the_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(devices.VISIBLE_VARIABLE, raising=False)
    (tmp_path / "0000:01:00.0").mkdir()
    (tmp_path / "0000:01:00.0" / "information").write_text("Model: \t\t NVIDIA L4\nIRQ: 5\n")
    (tmp_path / "0000:02:00.0").mkdir()
    assert devices.gpu_names(tmp_path) == ("NVIDIA L4", "a GPU")


def test_a_script_that_does_not_stop_has_a_few_seconds_and_sees_them_counted() -> None:
    countdown = Countdown(100.0)
    assert countdown.left_s(100.0, writing=False) == RUN_INTERRUPT_S
    assert countdown_text(6.2, writing=False) == (
        "saving, then stopping: ending in 7 s; Ctrl-C again ends at once"
    )
    assert countdown.left_s(100.0 + RUN_INTERRUPT_S, writing=False) <= 0


def test_a_checkpoint_that_is_being_written_is_waited_for_but_not_for_ever() -> None:
    countdown = Countdown(100.0)
    for second in range(int(RUN_SAVE_S)):
        assert countdown.left_s(100.0 + second, writing=True) > 0
    assert countdown.left_s(100.0 + RUN_SAVE_S, writing=True) <= 0
    stalled = Countdown(100.0)
    assert stalled.left_s(120.0, writing=True) > 0
    assert stalled.left_s(130.0, writing=False) <= 0


def test_a_file_that_has_grown_a_moment_ago_is_being_written(tmp_path: Path) -> None:
    assert not being_written(tmp_path / "nowhere")
    assert not being_written(tmp_path)
    draft = tmp_path / "draft"
    draft.write_bytes(b"x")
    assert being_written(tmp_path)
    os.utime(draft, (1.0, 1.0))
    assert not being_written(tmp_path)
