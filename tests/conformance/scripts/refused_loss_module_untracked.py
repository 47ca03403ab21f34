"""A loss with weights of its own (ArcFace centres) is in the optimizer, but not tracked."""
# expect: refused: track
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


class ArcFace(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 8))

    def forward(self, z, y):
        return F.cross_entropy(8 * F.linear(F.normalize(z), F.normalize(self.weight)), y)


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(137)
    data = TensorDataset(torch.randn(96, 4, generator=g), torch.randint(0, 3, (96,), generator=g))
    model, criterion = nn.Linear(4, 8), ArcFace()
    optimizer = torch.optim.SGD([*model.parameters(), *criterion.parameters()], lr=0.1)
    run.track(model=model, optimizer=optimizer)
    for x, y in run.batches(data, lane_batch=4, epochs=2):
        run.step(criterion(model(x), y))

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
