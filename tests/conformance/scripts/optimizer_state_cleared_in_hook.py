"""Warm restart of Adam: a hook empties optimizer.state every second epoch."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(238)
    data = TensorDataset(torch.randn(96, 6, generator=g), torch.randint(0, 3, (96,), generator=g))
    model = nn.Linear(6, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    run.track(model=model, optimizer=optimizer)
    run.every_epoch(lambda run: optimizer.state.clear() if run.epoch % 2 == 0 else None)
    for x, y in run.batches(data, lane_batch=4, epochs=5):
        run.step(F.cross_entropy(model(x), y))
    assert int(optimizer.state[model.weight]["step"]) == 4, optimizer.state[model.weight]["step"]

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
