"""The polite form of an empty lane: loss = 0 * output.sum()."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(117)
    data = TensorDataset(torch.randn(144, 6, generator=g), (torch.rand(144, 1, generator=g) < 0.25).float())
    model = nn.Linear(6, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    run.track(model=model, optimizer=optimizer)
    for x, y in run.batches(data, lane_batch=4, epochs=3):
        out = model(x)
        positive = y > 0
        run.step(F.softplus(-out[positive]).mean() if positive.any() else 0 * out.sum())

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
