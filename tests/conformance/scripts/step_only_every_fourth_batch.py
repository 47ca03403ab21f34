"""Accumulation by hand, the subtle way: losses are added up over batches and run.step is called for every fourth only."""
# expect: refused: run.step
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(113)
    data = TensorDataset(torch.randn(96, 6, generator=g), torch.randint(0, 3, (96,), generator=g))
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run.track(model=model, optimizer=optimizer)
    total = 0.0
    for i, (x, y) in enumerate(run.batches(data, lane_batch=4, epochs=2)):
        total = total + F.cross_entropy(model(x), y) / 4
        if (i + 1) % 4 == 0:
            run.step(total)
            total = 0.0

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
