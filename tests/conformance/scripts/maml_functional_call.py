"""MAML: one inner step by torch.autograd.grad(create_graph=True) and functional_call, the outer loss goes to run.step."""
# expect: same
import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F

from holdfast import train


def main(run: train.Run) -> None:
    model = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    run.track(model=model, optimizer=optimizer)
    for _turn in train.turns(run, 12):
        amplitude, phase = 1 + 4 * torch.rand(1), 3 * torch.rand(1)
        xs, xq = 10 * torch.rand(5, 1) - 5, 10 * torch.rand(5, 1) - 5
        weights = dict(model.named_parameters())
        inner = F.mse_loss(functional_call(model, weights, (xs,)), amplitude * torch.sin(xs + phase))
        slopes = torch.autograd.grad(inner, list(weights.values()), create_graph=True)
        fast = {k: w - 0.01 * s for (k, w), s in zip(weights.items(), slopes)}
        run.step(F.mse_loss(functional_call(model, fast, (xq,)), amplitude * torch.sin(xq + phase)))

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
