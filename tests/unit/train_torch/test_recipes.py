"""The recipes of docs/training.md run as they are printed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from holdfast import train
from tests.unit.train_torch.alone import Rows, alone

PAGE = Path(__file__).parents[3] / "docs" / "training.md"
RECIPES = PAGE.read_text().split("\n## Recipes\n")[1].split("\n## ")[0].split("\n### ")[1:]


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


def names() -> dict[str, Any]:
    """What the first example of the page has, and the parts of a GAN."""
    return {
        "torch": torch,
        "nn": nn,
        "functional": functional,
        "train": train,
        "Net": net,
        "dataset": Rows(200),
        "images": Rows(200),
        "Generator": lambda: nn.Linear(8, 3),
        "Discriminator": lambda: nn.Linear(3, 1),
    }


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda each: each.splitlines()[0])
def test_a_recipe_runs_as_it_is_printed(recipe: str) -> None:
    (code,) = re.findall(r"```python[^\n]*\n(.*?)```", recipe, re.DOTALL)
    known = names()
    exec(compile(code, str(PAGE), "exec"), known)
    held = alone(known["main"], lanes=2)
    assert held.member.step >= 12
