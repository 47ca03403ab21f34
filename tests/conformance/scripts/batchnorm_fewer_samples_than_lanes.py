"""Four samples for six lanes and a BatchNorm over positions: the running mean must move although some lane has no samples."""
# expect: same or refused: lane
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(301)
    data = TensorDataset(5 + torch.randn(4, 3, 8, generator=g), torch.randint(0, 2, (4,), generator=g))
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Flatten(), nn.Linear(24, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    run.track(model=model, optimizer=optimizer)
    for x, y in run.batches(data, lane_batch=1, epochs=30):
        run.step(F.cross_entropy(model(x), y))
    assert run.completed == 30
    assert (model[0].running_mean > 4).all(), model[0].running_mean

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
