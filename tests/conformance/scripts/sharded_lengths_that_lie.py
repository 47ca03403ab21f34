"""train.Sharded with lengths= that say more samples than read gives: must be named, not trained on silently."""
# expect: refused: length
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


def read(file, start=0):
    for n in range(start, 5):
        g = torch.Generator().manual_seed(file * 1000 + n)
        x = torch.randn(4, generator=g)
        yield x, x.sum(0, keepdim=True)


def main(run: train.Run) -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    run.track(model=model, optimizer=optimizer)
    data = train.Sharded(list(range(18)), read=read, lengths=[7] * 18)
    for x, y in run.batches(data, lane_batch=4, epochs=2):
        run.step(F.mse_loss(model(x), y))

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
