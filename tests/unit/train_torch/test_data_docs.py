"""The examples of docs/training.md, section "Data", as they are printed."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

from holdfast import train
from tests.faults.members_stage import ROOT
from tests.unit.train_torch.alone import Rows, alone

SECTION = (ROOT / "docs" / "training.md").read_text().partition("\n## Data\n")[2]
BLOCKS = re.findall(r"```python[^\n]*\n(.*?)```", SECTION.partition("\n## ")[0], re.DOTALL)


def test_the_section_has_its_examples() -> None:
    assert len(BLOCKS) == 6


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_an_example_runs_as_printed(block: str, tmp_path: Path) -> None:
    for file in range(5):
        rows = [{"x": [file / 5, n / 9, 1.0], "y": (file + n) % 2} for n in range(9)]
        (tmp_path / f"{file}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def main(run: train.Run) -> None:
        model = nn.Linear(3, 2)
        run.track(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
        names = {"run": run, "model": model, "dataset": Rows(100), "folder": tmp_path}
        tools = {"train": train, "torch": torch, "functional": functional}
        exec(compile(block, "training.md", "exec"), {**names, **tools})

    assert alone(main).member.step > 0
