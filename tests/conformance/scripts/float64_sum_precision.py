"""A float64 model must be summed in float64: checked beside a plain full-batch loop to 1e-12."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train
import copy


def main(run: train.Run) -> None:
    torch.set_default_dtype(torch.float64)
    g = torch.Generator().manual_seed(59)
    x, y = torch.randn(24, 5, generator=g), torch.randn(24, 1, generator=g)
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 1))
    plain = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    run.track(model=model, optimizer=optimizer)
    for a, b in run.batches(TensorDataset(x, y), lane_batch=4, epochs=20):
        run.step(F.mse_loss(model(a), b))
    reference = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    for _ in range(20):
        reference.zero_grad()
        F.mse_loss(plain(x), y).backward()
        reference.step()
    for p, q in zip(model.parameters(), plain.parameters()):
        assert (p - q).abs().max() < 1e-12, (p - q).abs().max()

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
