"""The optimizer is replaced by a fresh one under the same tracked name between two loops."""
# expect: same or refused: track
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(220)
    data = TensorDataset(torch.randn(120, 6, generator=g), torch.randint(0, 3, (120,), generator=g))
    model = nn.Linear(6, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    run.track(model=model, optimizer=optimizer)
    for x, y in run.batches(data, lane_batch=4, epochs=2):
        run.step(F.cross_entropy(model(x), y))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    run.track(optimizer=optimizer)
    for x, y in run.batches(data, lane_batch=4, epochs=2):
        run.step(F.cross_entropy(model(x), y))
    assert run.completed == 20
    assert "momentum_buffer" in optimizer.state[model.weight]

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
