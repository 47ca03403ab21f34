"""BatchNorm with momentum=None keeps a cumulative mean: the count of batches must be the count of steps."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(9)
    data = TensorDataset(torch.randn(240, 3, 4, 4, generator=g) + 2, torch.randint(0, 2, (240,), generator=g))
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, momentum=None), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    run.track(model=model, optimizer=optimizer)
    for x, y in run.batches(data, lane_batch=4, epochs=3):
        run.step(F.cross_entropy(model(x), y))
    assert run.completed == 30
    assert int(model[1].num_batches_tracked) == 30, int(model[1].num_batches_tracked)

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
