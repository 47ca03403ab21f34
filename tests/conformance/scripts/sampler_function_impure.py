"""A sampler function that forgets the seed and asks an unseeded random.Random(): another order on every worker."""
# expect: same or refused: sampler
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train
import random


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(154)
    data = TensorDataset(torch.randn(120, 4, generator=g), torch.randint(0, 2, (120,), generator=g))

    def order(epoch, seed):
        numbers = list(range(120))
        random.Random().shuffle(numbers)
        return numbers

    model = nn.Linear(4, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    run.track(model=model, optimizer=optimizer)
    for a, b in run.batches(data, lane_batch=4, epochs=3, sampler=order):
        run.step(F.cross_entropy(model(a), b))

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
