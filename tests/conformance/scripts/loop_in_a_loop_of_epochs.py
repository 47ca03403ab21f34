"""The outer epoch loop was kept: for epoch in range(4): for batch in run.batches(..., epochs=1): four loops, each of its own order."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(221)
    data = TensorDataset(torch.randn(120, 6, generator=g), torch.randint(0, 3, (120,), generator=g))
    model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.3), nn.Linear(8, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    run.track(model=model, optimizer=optimizer)
    for epoch in range(4):
        optimizer.param_groups[0]["lr"] = 1e-2 * 0.5**epoch
        for x, y in run.batches(data, lane_batch=4, epochs=1):
            run.step(F.cross_entropy(model(x), y))
    assert run.completed == 20

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
