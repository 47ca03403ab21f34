"""A binarised layer by a custom autograd.Function with a straight-through estimator that saves tensors."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


class Sign(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sign()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (x.abs() <= 1) + 0.01 * torch.randn_like(grad)  # noise in the backward pass, too


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(54)
    data = TensorDataset(torch.randn(144, 6, generator=g), torch.randint(0, 3, (144,), generator=g))
    first, last = nn.Linear(6, 16), nn.Linear(16, 3)
    model = nn.ModuleList([first, last])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    run.track(model=model, optimizer=optimizer)
    for x, y in run.batches(data, lane_batch=4, epochs=4):
        run.step(F.cross_entropy(last(Sign.apply(first(x))), y))

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
