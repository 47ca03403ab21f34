"""`holdfast run` as it looks when it has succeeded, and when its script fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.run_world import nothing_is_left
from tests.terminal.capturing import SIZES, Size, check, picture, place

pytestmark = pytest.mark.engines

TRAIN = """\
import torch
from holdfast import train


class Line(torch.nn.Linear):
    def __init__(self) -> None:
        super().__init__(2, 1)


def main(run: train.Run) -> None:
    data = torch.arange(128.0).reshape(64, 2) / 128
    model = Line()
    run.track(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    for batch in run.batches(data, lane_batch=8, epochs=2):
        run.step(model(batch.data).square().mean())
    run.publish(model, "line", example=torch.zeros(1, 2))


if __name__ == "__main__":
    train.launch(main)
"""
BROKEN = """\
import os

def main(:
    pass
"""
MISSING = """\
def read(name: str) -> str:
    return open(name).read()


read("numbers.csv")
"""


def shown(folder: Path, script: str, text: str, size: Size, code: int) -> str:
    (folder / script).write_text(text)
    try:
        return picture(["holdfast", "run", script, "--gpu", "0"], size, folder, code)
    finally:
        nothing_is_left(folder)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_a_run_that_succeeds_ends_with_its_loss_its_model_and_the_next_command(size: Size) -> None:
    with place() as folder:
        text = shown(folder, "train.py", TRAIN, size, 0)
    check("run", size, text)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_a_script_that_cannot_be_parsed_ends_with_its_file_and_line(size: Size) -> None:
    with place() as folder:
        text = shown(folder, "broken.py", BROKEN, size, 1)
    check("run_syntax_error", size, text)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_a_failing_run_ends_with_its_cause(size: Size) -> None:
    with place() as folder:
        text = shown(folder, "missing.py", MISSING, size, 1)
    check("run_fails", size, text)
