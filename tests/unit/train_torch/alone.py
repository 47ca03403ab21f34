"""Runs without a cluster, for tests: all lanes in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from holdfast.train.chance import seed_everything, seed_of
from holdfast.train.members.solo import Solo
from holdfast.train.modes.run_state import RunState
from holdfast.train.modes.training_loop import TrainingLoop
from holdfast.train.run import Run
from holdfast.train.settings import Settings


def alone(
    main: Callable[[Run], Any],
    *,
    lanes: int = 4,
    seed: int = 0,
    settings: Mapping[str, str] | None = None,
    folder: Path | None = None,
    device: str = "cpu",
) -> RunState:
    """Run it to its end, as `train.launch` does; what is left of it."""
    torch.set_num_threads(1)
    texts = dict(settings or {})
    values = Settings()
    values.take(texts)
    held = RunState(
        lanes=lanes, seed=seed, settings=values, texts=texts, device=torch.device(device)
    )
    held.member = Solo(held, lanes, settings=texts, folder=folder, every_steps=1)
    loop = TrainingLoop(held)
    seed_everything(seed_of(seed, "fresh"))
    try:
        main(Run(loop))
        loop.finish()
    except BaseException:
        held.member.close()
        raise
    return held


class Rows:
    """Samples that can be told apart: number i is a row of i, and i modulo 2."""

    def __init__(self, count: int, width: int = 3) -> None:
        self.x = torch.arange(count, dtype=torch.float32).unsqueeze(1).repeat(1, width) / count
        self.y = torch.arange(count) % 2

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.x[index], self.y[index]
