"""Three hooks of the same step draw from torch, numpy and random; two alike must not draw the same numbers."""
# expect: same
import random

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(15)
    data = TensorDataset(torch.randn(96, 4, generator=g), torch.randn(96, 1, generator=g))
    model = nn.Linear(4, 1)
    marks = nn.Module()
    marks.register_buffer("draws", torch.zeros(3, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    run.track(model=model, marks=marks, optimizer=optimizer)

    def jitter(row):
        def hook(run):
            drawn = torch.tensor([torch.rand(()).item(), np.random.rand(), random.random()])
            marks.draws[row] = drawn
            with torch.no_grad():
                model.weight.add_(0.01 * (drawn.sum() - 1.5))

        return hook

    run.every(1, jitter(0))
    run.every(1, jitter(1))
    run.every_epoch(jitter(2))
    for x, y in run.batches(data, lane_batch=4, epochs=3):
        run.step(F.mse_loss(model(x), y))
    assert (marks.draws > 0).all()
    assert (marks.draws[0] != marks.draws[1]).all(), marks.draws
    assert (marks.draws[0] != marks.draws[2]).all(), marks.draws

    published_1 = run.publish(model, "model")
    published_2 = run.publish(marks, "marks")
    if run.first:
        print("SHA", published_1.digest)
        print("SHA", published_2.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
