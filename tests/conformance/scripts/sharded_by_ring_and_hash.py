"""Two loops over named shards, by consistent hashing and by hash, with augmentation from numpy inside read."""
# expect: refused: draw in collate
# note: read must always give the same; before collate all generators are seeded
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train
import numpy as np


def read(file):
    number = int(file.rsplit("-", 1)[1])
    g = torch.Generator().manual_seed(number)
    for _ in range(9):
        x = torch.randn(4, generator=g) + 0.05 * float(np.random.randn())
        yield x, x.sum(0, keepdim=True)


def main(run: train.Run) -> None:
    files = [f"shard-{i:03d}" for i in range(17)]
    model = nn.Linear(4, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    run.track(model=model, optimizer=optimizer)
    for by in ("ring", "hash"):
        for x, y in run.batches(train.Sharded(files, read=read, by=by), lane_batch=3, epochs=1):
            run.step(F.mse_loss(model(x), y))

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
