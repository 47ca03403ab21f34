"""An optimizer with a coin from `random` and a permutation from numpy for coordinate descent."""
# expect: same
import random

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


class RandomCoordinate(torch.optim.Optimizer):
    def __init__(self, params, lr=0.1):
        super().__init__(params, dict(lr=lr))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None or random.random() < 0.2:
                    continue
                chosen = np.random.permutation(p.numel())[: max(1, p.numel() // 2)]
                p.view(-1)[chosen] -= group["lr"] * p.grad.reshape(-1)[chosen]


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(12)
    x = torch.randn(120, 8, generator=g)
    data = TensorDataset(x, x[:, :1] * 2)
    model = nn.Linear(8, 1)
    optimizer = RandomCoordinate(model.parameters())
    run.track(model=model, optimizer=optimizer)
    for a, b in run.batches(data, lane_batch=4, epochs=4):
        run.step(F.mse_loss(model(a), b))

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
