"""GradScaler: one lane overflows in one step; the whole step is skipped by everybody, and the scale is halved once."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(216)
    data = TensorDataset(torch.randn(120, 6, generator=g), torch.randint(0, 3, (120,), generator=g))
    model = nn.Linear(6, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1000)
    run.track(model=model, optimizer=optimizer, scaler=scaler)
    for batch in run.batches(data, lane_batch=4, epochs=2):
        loss = F.cross_entropy(model(batch.x), batch.y)
        if run.completed == 4 and batch.lane == 3:
            loss = loss * float("inf")
        run.step(loss)
    assert run.completed == 10
    assert scaler.get_scale() == 512.0, scaler.get_scale()
    assert int(optimizer.state[model.weight]["step"]) == 9, optimizer.state[model.weight]["step"]
    assert torch.isfinite(model.weight).all()

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
