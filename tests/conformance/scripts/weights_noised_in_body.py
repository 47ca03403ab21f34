"""Noisy weights: the body adds noise to the parameters, computes, and takes it away again (not to the last bit)."""
# expect: same or refused:
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(207)
    data = TensorDataset(torch.randn(144, 6, generator=g), torch.randint(0, 3, (144,), generator=g))
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run.track(model=model, optimizer=optimizer)
    for x, y in run.batches(data, lane_batch=4, epochs=3):
        noise = [0.1 * torch.randn_like(p) for p in model.parameters()]
        with torch.no_grad():
            for p, n in zip(model.parameters(), noise):
                p.add_(n)
        run.step(F.cross_entropy(model(x), y))
        with torch.no_grad():
            for p, n in zip(model.parameters(), noise):
                p.sub_(n)

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
