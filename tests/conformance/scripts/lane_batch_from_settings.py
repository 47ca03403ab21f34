"""lane_batch=run.settings.lane_batch, the live form that `holdfast set JOB lane_batch=...` may change."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(305)
    data = TensorDataset(torch.randn(100, 6, generator=g), torch.randint(0, 3, (100,), generator=g))
    model = nn.Linear(6, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    run.track(model=model, optimizer=optimizer)
    for x, y in run.batches(data, lane_batch=run.settings.lane_batch, epochs=3):
        run.step(F.cross_entropy(model(x), y))
    assert run.completed == 15, run.completed

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6, settings={"lane_batch": 4})
