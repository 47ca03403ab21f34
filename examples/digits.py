"""Learns to read handwritten digits: the same weights, bit for bit, on any number of workers.

    python examples/digits.py                               # alone, 8 lanes in this process
    holdfast run examples/digits.py --workers 4 --lanes 8   # the same result, whoever dies

The data is scikit-learn's digits: 1,797 pictures of 8 by 8 points. Every fifth is kept for testing.
Needs: pip install 'holdfast[train]' scikit-learn
"""

from __future__ import annotations

import time

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from holdfast import train


def pictures() -> tuple[TensorDataset, TensorDataset]:
    """Pictures to learn from, and others to test with."""
    found = load_digits()
    x = torch.tensor(found.images, dtype=torch.float32).unsqueeze(1) / 16
    y = torch.tensor(found.target)
    tests = torch.arange(len(x)) % 5 == 0
    return TensorDataset(x[~tests], y[~tests]), TensorDataset(x[tests], y[tests])


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.25),
        nn.Linear(32 * 16, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def main(run: train.Run) -> None:
    learn, test = pictures()
    model = network().to(run.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=run.settings.lr, weight_decay=0.01)
    run.track(model=model, optimizer=optimizer)
    run.clip(1.0)

    @run.every_epoch
    def look(run: train.Run) -> None:
        found = run.evaluate(
            lambda batch: {"right": (model(batch.x).argmax(1) == batch.y).sum()}, test
        )
        run.log("accuracy", found["right"])
        if run.first:
            loss = f"loss {run.metrics['loss']:.4f}"
            accuracy = f"accuracy {found['right']:.2%}"
            print(f"epoch {run.epoch:2}  step {run.completed:4}  {loss}  {accuracy}", flush=True)

    for batch in run.batches(learn, lane_batch=16, epochs=run.settings.epochs):
        loss = functional.cross_entropy(model(batch.x), batch.y)
        run.step(loss)
        time.sleep(run.settings.get("pause_s", 0.0))  # for those who want to watch

    found = run.publish(model, "digits", example={"pixels": test[:4][0]}, build=network)
    if run.first:
        print(f"accuracy {run.metrics['accuracy']:.2%}", flush=True)
        print(f"weights  {found.digest}", flush=True)


if __name__ == "__main__":
    train.launch(main, lanes=8, settings={"lr": 3e-3, "epochs": 20})
