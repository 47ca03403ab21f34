"""Compression to bf16 of gradients that are absent in some lanes and float64 in others."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(6, 3)
        self.b = nn.Linear(6, 3).double()

    def forward(self, x):
        return self.a(x) if x.sum() > 0 else self.b(x.double()).float()


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(246)
    data = TensorDataset(torch.randn(150, 6, generator=g), torch.randint(0, 3, (150,), generator=g))
    model = Two()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    run.track(model=model, optimizer=optimizer)
    run.compress("bf16")
    for x, y in run.batches(data, lane_batch=4, epochs=3):
        run.step(F.cross_entropy(model(x), y))

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
