"""Stochastic depth: whole blocks are left out at random (random.random()), so parameters lack gradients in random lanes and steps."""
# expect: same
import random

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(4, 8)
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        self.out = nn.Linear(8, 2)

    def forward(self, x):
        x = self.inp(x)
        for block in self.blocks:
            if not self.training or random.random() > 0.8:
                x = x + torch.relu(block(x))
        return self.out(x)


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(36)
    data = TensorDataset(torch.randn(150, 4, generator=g), torch.randint(0, 2, (150,), generator=g))
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    run.track(model=model, optimizer=optimizer)
    for x, y in run.batches(data, lane_batch=4, epochs=4):
        run.step(F.cross_entropy(model(x), y))
    steps = [int(optimizer.state[b.weight]["step"]) for b in model.blocks if b.weight in optimizer.state]
    assert steps and all(0 < s < run.completed for s in steps), (steps, run.completed)

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
