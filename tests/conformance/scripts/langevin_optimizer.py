"""Stochastic gradient Langevin dynamics: the optimizer's step() draws noise with torch.randn_like."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


class SGLD(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-2, temperature=1e-3):
        super().__init__(params, dict(lr=lr, temperature=temperature))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            scale = (2 * group["lr"] * group["temperature"]) ** 0.5
            for p in group["params"]:
                if p.grad is not None:
                    p.add_(p.grad, alpha=-group["lr"]).add_(torch.randn_like(p), alpha=scale)


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(10)
    x = torch.randn(144, 4, generator=g)
    data = TensorDataset(x, x @ torch.tensor([[1.0], [-2.0], [0.5], [0.0]]))
    model = nn.Linear(4, 1)
    optimizer = SGLD(model.parameters(), lr=0.05)
    run.track(model=model, optimizer=optimizer)
    for a, b in run.batches(data, lane_batch=4, epochs=5):
        run.step(F.mse_loss(model(a), b))

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
