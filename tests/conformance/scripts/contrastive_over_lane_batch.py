"""SimCLR's NT-Xent over the lane's own batch, with random views made in the body by random and numpy."""
# expect: same
import random

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


def view(x):
    x = x * (1 + 0.2 * random.uniform(-1, 1)) + 0.1 * torch.from_numpy(np.random.randn(*x.shape)).float()
    return x * (torch.rand_like(x) > 0.1)


def main(run: train.Run) -> None:
    data = TensorDataset(torch.randn(96, 8, generator=torch.Generator().manual_seed(225)))
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 6))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    run.track(model=model, optimizer=optimizer)
    for (x,) in run.batches(data, lane_batch=4, epochs=4):
        z = F.normalize(model(torch.cat([view(x), view(x)])), dim=1)
        similarity = (z @ z.T / 0.5).masked_fill(torch.eye(len(z), dtype=torch.bool), -1e9)
        goal = torch.arange(len(z)).roll(len(x))
        run.step(F.cross_entropy(similarity, goal))

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
