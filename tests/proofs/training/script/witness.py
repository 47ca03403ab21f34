"""What is trained in the proof: a small model with all that could differ between two runs.

    python witness.py --model mlp --samples FOLDER [--steps N] [--step-ms MS]

Which batches a worker has computed goes to a file of its own in FOLDER, line by line.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import torch
from torch.nn import functional

from holdfast import train
from holdfast.train.data.source import SAMPLE_LOG_VARIABLE
from tests.faults.training_scenarios import MODELS, Points

SAMPLES = 90
LANE_BATCH = 2


def main(run: train.Run, options: argparse.Namespace) -> None:
    make, shape = MODELS[options.model]
    data = Points(shape, SAMPLES)
    model = make().to(run.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=run.settings.lr, weight_decay=0.05)
    run.track(model=model, optimizer=optimizer)
    run.track(scheduler=torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 40))
    run.clip(0.5)
    # pause: long enough for something to happen meanwhile; it is no part of the result.
    run.every(1, lambda _run: time.sleep(options.step_ms / 1000))
    for batch in run.batches(data, lane_batch=LANE_BATCH, epochs=options.epochs):
        run.step(functional.cross_entropy(model(batch.x), batch.y))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=MODELS, required=True)
    parser.add_argument("--samples", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--step-ms", type=int, default=0)
    given = parser.parse_args()
    os.environ[SAMPLE_LOG_VARIABLE] = str(given.samples)
    train.launch(lambda run: main(run, given), lanes=8, settings={"lr": 0.01})
