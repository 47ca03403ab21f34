"""train.Sharded over in-memory 'files' of very different lengths, by range, some of them empty."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


def read(file):
    g = torch.Generator().manual_seed(file)
    for _ in range((file * 7) % 13):
        x = torch.randn(4, generator=g)
        yield x, x.sum(0, keepdim=True)


def main(run: train.Run) -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    run.track(model=model, optimizer=optimizer)
    for x, y in run.batches(train.Sharded(list(range(20)), read=read, by="range"), lane_batch=4, epochs=2):
        run.step(F.mse_loss(model(x), y))
    assert run.completed > 0

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
