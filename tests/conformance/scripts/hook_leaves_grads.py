"""A hook does a backward of its own (gradient norm on a probe) and leaves .grad behind: the next step must not see it."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train
import copy


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(120)
    x, y = torch.randn(24, 6, generator=g), torch.randint(0, 3, (24,), generator=g)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    plain = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    run.track(model=model, optimizer=optimizer)
    run.every(2, lambda run: (50 * F.cross_entropy(model(x[:3]), y[:3])).backward())
    for a, b in run.batches(TensorDataset(x, y), lane_batch=4, epochs=9):
        run.step(F.cross_entropy(model(a), b))
    reference = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.5)
    for _ in range(9):
        reference.zero_grad()
        F.cross_entropy(plain(x), y).backward()
        reference.step()
    for p, q in zip(model.parameters(), plain.parameters()):
        assert torch.allclose(p, q, atol=1e-5), (p - q).abs().max()

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
