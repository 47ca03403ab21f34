"""A module counts its forward passes in self.calls and anneals a temperature by it."""
# expect: same or refused:
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


class Annealed(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 3)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return self.fc(x) / max(0.5, 5.0 * 0.95**self.calls)


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(42)
    data = TensorDataset(torch.randn(144, 4, generator=g), torch.randint(0, 3, (144,), generator=g))
    model = Annealed()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run.track(model=model, optimizer=optimizer)
    for x, y in run.batches(data, lane_batch=4, epochs=3):
        run.step(F.cross_entropy(model(x), y))

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
