"""Weights in bf16 with stochastic rounding in a hand-written optimizer that keeps integer random bits."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


def round_stochastically(target, source):
    bits = source.view(torch.int32)
    noise = torch.randint(0, 1 << 16, bits.shape, dtype=torch.int32)
    target.copy_(((bits + noise) & -65536).view(torch.float32))


class RoundingSGD(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, dict(lr=lr))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    round_stochastically(p, (p.float() - group["lr"] * p.grad.float()).contiguous())


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(11)
    x = torch.randn(96, 8, generator=g)
    data = TensorDataset(x, x.sum(1, keepdim=True))
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)).bfloat16()
    optimizer = RoundingSGD(model.parameters(), lr=0.01)
    run.track(model=model, optimizer=optimizer)
    for a, b in run.batches(data, lane_batch=4, epochs=5):
        run.step(F.mse_loss(model(a.bfloat16()).float(), b))

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
