"""One parameter is held by two tracked optimizers; both update it in every step, in the order in which they were tracked."""
# expect: same or refused: optimizer
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train
import copy


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(231)
    x, y = torch.randn(24, 6, generator=g), torch.randint(0, 3, (24,), generator=g)
    model = nn.Linear(6, 3)
    plain = copy.deepcopy(model)
    first = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    second = torch.optim.Adam([model.weight], lr=1e-2)
    run.track(model=model, first=first, second=second)
    for a, b in run.batches(TensorDataset(x, y), lane_batch=4, epochs=10):
        run.step(F.cross_entropy(model(a), b))
    one, two = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9), torch.optim.Adam([plain.weight], lr=1e-2)
    for _ in range(10):
        plain.zero_grad()
        F.cross_entropy(plain(x), y).backward()
        one.step()
        two.step()
    assert torch.allclose(model.weight, plain.weight, atol=1e-4), (model.weight - plain.weight).abs().max()

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
