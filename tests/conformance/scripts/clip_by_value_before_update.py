"""clip_grad_value_ in before_update, checked beside a plain full-batch loop."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train
import copy

from torch.nn.utils import clip_grad_value_


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(74)
    x, y = torch.randn(24, 6, generator=g), 5 * torch.randn(24, 1, generator=g)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    plain = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run.track(model=model, optimizer=optimizer)
    run.before_update(lambda run: clip_grad_value_(model.parameters(), 0.02))
    for a, b in run.batches(TensorDataset(x, y), lane_batch=4, epochs=15):
        run.step(F.mse_loss(model(a), b))
    reference = torch.optim.SGD(plain.parameters(), lr=0.1)
    for _ in range(15):
        reference.zero_grad()
        F.mse_loss(plain(x), y).backward()
        clip_grad_value_(plain.parameters(), 0.02)
        reference.step()
    for p, q in zip(model.parameters(), plain.parameters()):
        assert torch.allclose(p, q, atol=1e-5), (p - q).abs().max()

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
