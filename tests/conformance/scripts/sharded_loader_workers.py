"""train.Sharded with loader_workers=2 and random augmentation in read: processes that fetch ahead must not change the samples."""
# expect: refused: draw in collate
# note: read must always give the same; before collate all generators are seeded
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train
import random


def read(file):
    g = torch.Generator().manual_seed(file)
    for _ in range(7 + file % 3):
        x = torch.randn(4, generator=g) + 0.1 * torch.randn(4) + 0.1 * random.random()
        yield x, x.sum(0, keepdim=True)


def main(run: train.Run) -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    run.track(model=model, optimizer=optimizer)
    for x, y in run.batches(train.Sharded(list(range(18)), read=read), lane_batch=4, epochs=3, loader_workers=2):
        run.step(F.mse_loss(model(x), y))

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
