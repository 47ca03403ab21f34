"""Mixup with a global numpy default_rng(0), as on Kaggle: seeded once, remembered by the process."""
# expect: same or refused:
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train

RNG = np.random.default_rng(0)


def mixup(x, y, alpha=0.4):
    lam = float(RNG.beta(alpha, alpha))
    index = torch.from_numpy(RNG.permutation(len(x)))
    return lam * x + (1 - lam) * x[index], y, y[index], lam


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(18)
    data = TensorDataset(torch.randn(144, 4, generator=g), torch.randint(0, 3, (144,), generator=g))
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    run.track(model=model, optimizer=optimizer)
    for x, y in run.batches(data, lane_batch=4, epochs=3):
        x, a, b, lam = mixup(x, y)
        out = model(x)
        run.step(lam * F.cross_entropy(out, a) + (1 - lam) * F.cross_entropy(out, b))

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
