"""A hand-written torch Sampler that shuffles its own list further each time it is iterated (remembers)."""
# expect: same or refused: sampler
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train
from torch.utils.data import Sampler


class Drifting(Sampler):
    def __init__(self, n):
        self.numbers = list(range(n))

    def __len__(self):
        return len(self.numbers)

    def __iter__(self):
        self.numbers = self.numbers[7:] + self.numbers[:7]
        return iter(self.numbers)


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(155)
    data = TensorDataset(torch.randn(120, 4, generator=g), torch.randint(0, 2, (120,), generator=g))
    model = nn.Linear(4, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    run.track(model=model, optimizer=optimizer)
    for a, b in run.batches(data, lane_batch=4, epochs=3, sampler=Drifting(120)):
        run.step(F.cross_entropy(model(a), b))

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
