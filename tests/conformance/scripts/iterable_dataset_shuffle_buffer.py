"""An IterableDataset with start and a shuffle buffer drawn from `random`: entering in the middle gives another order."""
# expect: same or refused:
# note: a difference shows when a lane moves in the middle of an epoch, or with loader_workers
import random

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import IterableDataset

from holdfast import train


class Buffered(IterableDataset):
    def start(self, lane, lanes, epoch, at):
        buffer = []
        for n in range(at, 24):
            g = torch.Generator().manual_seed(epoch * 100003 + lane * 1009 + n)
            buffer.append(torch.randn(4, generator=g))
            if len(buffer) == 8:
                x = buffer.pop(random.randrange(8))
                yield x, x.sum(0, keepdim=True)
        random.shuffle(buffer)
        for x in buffer:
            yield x, x.sum(0, keepdim=True)

    def __iter__(self):
        return self.start(0, 1, 0, 0)


def main(run: train.Run) -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    run.track(model=model, optimizer=optimizer)
    for x, y in run.batches(Buffered(), lane_batch=4, epochs=3):
        run.step(F.mse_loss(model(x), y))

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
