"""An IterableDataset with start(...) and loader_workers=2."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import IterableDataset

from holdfast import train


class Stream(IterableDataset):
    def start(self, lane, lanes, epoch, at):
        for n in range(at, 18):
            g = torch.Generator().manual_seed(epoch * 100003 + lane * 1009 + n)
            x = torch.randn(4, generator=g)
            yield x, x.sum(0, keepdim=True)

    def __iter__(self):
        return self.start(0, 1, 0, 0)


def main(run: train.Run) -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    run.track(model=model, optimizer=optimizer)
    for x, y in run.batches(Stream(), lane_batch=4, epochs=3, loader_workers=2):
        run.step(F.mse_loss(model(x), y))

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
