"""run.accumulate(2) over batch norm and dropout: each part draws its own numbers; buffers are lane 0's."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(212)
    data = TensorDataset(torch.randn(144, 6, generator=g), torch.randint(0, 3, (144,), generator=g))
    model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    run.track(model=model, optimizer=optimizer)
    run.accumulate(2)
    for x, y in run.batches(data, lane_batch=6, epochs=4):
        run.step(F.cross_entropy(model(x), y))
    # parts *of* a lane's batch: 16 steps; as the rules have it today, lane_batch for each part: 8
    assert run.completed in (8, 16), run.completed

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
