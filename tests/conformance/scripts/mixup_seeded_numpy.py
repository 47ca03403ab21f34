"""Mixup with numpy's old generator and torch.randperm in the body, which the runner seeds for each batch."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train
import numpy as np


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(19)
    data = TensorDataset(torch.randn(144, 4, generator=g), torch.randint(0, 3, (144,), generator=g))
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    run.track(model=model, optimizer=optimizer)
    for x, y in run.batches(data, lane_batch=4, epochs=3):
        lam = float(np.random.beta(0.4, 0.4))
        index = torch.randperm(len(x))
        out = model(lam * x + (1 - lam) * x[index])
        run.step(lam * F.cross_entropy(out, y) + (1 - lam) * F.cross_entropy(out, y[index]))

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
