"""One model with float32, float64 and bfloat16 parameters, and float64 losses."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 8)
        self.b = nn.Linear(8, 8).bfloat16()
        self.c = nn.Linear(8, 1).double()

    def forward(self, x):
        return self.c(torch.tanh(self.b(torch.tanh(self.a(x)).bfloat16())).double())


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(58)
    data = TensorDataset(torch.randn(144, 4, generator=g), torch.randn(144, 1, generator=g, dtype=torch.float64))
    model = Mixed()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    run.track(model=model, optimizer=optimizer)
    run.clip(1.0)
    for x, y in run.batches(data, lane_batch=4, epochs=4):
        run.step(F.mse_loss(model(x), y))
    assert model.c.weight.dtype == torch.float64 and model.b.weight.dtype == torch.bfloat16

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
