"""Settings, typed, shape the model and the schedule; get() with a default for one that is not there."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(249)
    data = TensorDataset(torch.randn(144, 6, generator=g), torch.randint(0, 3, (144,), generator=g))
    width, depth = run.settings.width, run.settings.get("depth", 2)
    assert isinstance(width, int) and isinstance(run.settings.dropout, float) and isinstance(run.settings.norm, bool)
    layers, size = [], 6
    for _ in range(depth):
        layers += [nn.Linear(size, width), nn.LayerNorm(width) if run.settings.norm else nn.Identity(), nn.ReLU()]
        size = width
    model = nn.Sequential(*layers, nn.Dropout(run.settings.dropout), nn.Linear(size, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=run.settings.lr)
    run.track(model=model, optimizer=optimizer)
    for x, y in run.batches(data, lane_batch=4, epochs=3):
        run.step(F.cross_entropy(model(x), y))

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6, settings={"width": 12, "dropout": 0.25, "norm": True, "lr": 0.01})
