"""DP-SGD with torch.func (grad, vmap, functional_call): clipped per-sample gradients go in through a surrogate loss."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train
from torch.func import functional_call, grad, vmap


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(228)
    data = TensorDataset(torch.randn(96, 6, generator=g), torch.randint(0, 3, (96,), generator=g))
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run.track(model=model, optimizer=optimizer)

    def one(parameters, x, y):
        return F.cross_entropy(functional_call(model, parameters, (x[None],)), y[None])

    for x, y in run.batches(data, lane_batch=4, epochs=4):
        parameters = {k: v.detach() for k, v in model.named_parameters()}
        each = vmap(grad(one), in_dims=(None, 0, 0))(parameters, x, y)
        norms = torch.stack([v.flatten(1).norm(dim=1) for v in each.values()]).norm(dim=0)
        factor = (0.5 / norms).clamp(max=1.0)
        loss = 0
        for name, p in model.named_parameters():
            clipped = (each[name] * factor.view(-1, *[1] * p.dim())).mean(0)
            loss = loss + (p * (clipped + 0.01 * torch.randn_like(p))).sum()
        run.step(loss)

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
