"""Two before_update hooks (per-group clipping, then gradient centralisation), then run.clip: the order is checked."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train
import copy

from torch.nn.utils import clip_grad_norm_


def centralise(parameters):
    for p in parameters:
        if p.grad is not None and p.dim() > 1:
            p.grad.sub_(p.grad.mean(dim=1, keepdim=True))


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(75)
    x, y = torch.randn(24, 6, generator=g), 5 * torch.randn(24, 1, generator=g)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    plain = copy.deepcopy(model)
    optimizer = torch.optim.SGD([{"params": model[0].parameters()}, {"params": model[2].parameters(), "lr": 0.05}], lr=0.1)
    run.track(model=model, optimizer=optimizer)
    run.clip(0.3)

    @run.before_update
    def per_group(run):
        for group in optimizer.param_groups:
            clip_grad_norm_(group["params"], 0.5)

    run.before_update(lambda run: centralise(model.parameters()))
    for a, b in run.batches(TensorDataset(x, y), lane_batch=4, epochs=15):
        run.step(F.mse_loss(model(a), b))
    reference = torch.optim.SGD([{"params": plain[0].parameters()}, {"params": plain[2].parameters(), "lr": 0.05}], lr=0.1)
    for _ in range(15):
        reference.zero_grad()
        F.mse_loss(plain(x), y).backward()
        for group in reference.param_groups:
            clip_grad_norm_(group["params"], 0.5)
        centralise(plain.parameters())
        clip_grad_norm_(plain.parameters(), 0.3)
        reference.step()
    for p, q in zip(model.parameters(), plain.parameters()):
        assert torch.allclose(p, q, atol=1e-5), (p - q).abs().max()

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
