"""Domain-adversarial training: a gradient reversal layer whose strength follows run.completed."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train
import math


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, strength):
        ctx.strength = strength
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return -ctx.strength * grad, None


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(55)
    data = TensorDataset(
        torch.randn(144, 6, generator=g),
        torch.randint(0, 3, (144,), generator=g),
        torch.randint(0, 2, (144,), generator=g),
    )
    model = nn.ModuleDict({"body": nn.Linear(6, 12), "label": nn.Linear(12, 3), "domain": nn.Linear(12, 2)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    run.track(model=model, optimizer=optimizer)
    for x, y, d in run.batches(data, lane_batch=4, epochs=4):
        strength = 2 / (1 + math.exp(-10 * run.completed / 24)) - 1
        h = torch.relu(model["body"](x))
        run.step(F.cross_entropy(model["label"](h), y), F.cross_entropy(model["domain"](Reverse.apply(h, strength)), d))

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
