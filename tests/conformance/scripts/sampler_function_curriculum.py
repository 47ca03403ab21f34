"""A sampler as a function of (epoch, seed): easy samples first in epoch 0, shuffled later."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train
import random


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(153)
    x, y = torch.randn(120, 4, generator=g), torch.randint(0, 2, (120,), generator=g)
    difficulty = x.abs().sum(1)

    def order(epoch, seed):
        if epoch == 0:
            return difficulty.argsort().tolist()
        numbers = list(range(120))
        random.Random(f"{seed}-{epoch}").shuffle(numbers)
        return numbers

    model = nn.Linear(4, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    run.track(model=model, optimizer=optimizer)
    for a, b in run.batches(TensorDataset(x, y), lane_batch=4, epochs=4, sampler=order):
        run.step(F.cross_entropy(model(a), b))
    assert run.completed == 20

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
