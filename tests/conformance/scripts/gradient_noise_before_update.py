"""Annealed Gaussian noise on the summed gradient in run.before_update, given as a decorator."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(13)
    data = TensorDataset(torch.randn(120, 8, generator=g), torch.randint(0, 4, (120,), generator=g))
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    run.track(model=model, optimizer=optimizer)

    @run.before_update
    def add_noise(run):
        sigma = (0.01 / (1 + run.completed) ** 0.55) ** 0.5
        for p in model.parameters():
            assert p.grad is not None
            p.grad.add_(torch.randn_like(p.grad) * sigma)

    for x, y in run.batches(data, lane_batch=4, epochs=4):
        run.step(F.cross_entropy(model(x), y))
    assert callable(add_noise)

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
