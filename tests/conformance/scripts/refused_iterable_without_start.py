"""An IterableDataset that cannot be entered at a position."""
# expect: refused: start
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import IterableDataset

from holdfast import train


class Stream(IterableDataset):
    def __iter__(self):
        g = torch.Generator().manual_seed(135)
        for _ in range(96):
            yield torch.randn(4, generator=g), torch.randint(0, 2, (), generator=g)


def main(run: train.Run) -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run.track(model=model, optimizer=optimizer)
    for x, y in run.batches(Stream(), lane_batch=4, epochs=1):
        run.step(F.cross_entropy(model(x), y))

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
