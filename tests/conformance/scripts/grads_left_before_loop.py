"""A sanity check before the loop leaves gradients in .grad: they must not be counted into the first step."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train
import copy


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(119)
    x, y = torch.randn(24, 6, generator=g), torch.randint(0, 3, (24,), generator=g)
    model = nn.Linear(6, 3)
    plain = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run.track(model=model, optimizer=optimizer)
    (100 * F.cross_entropy(model(x[:2]), y[:2])).backward()
    for a, b in run.batches(TensorDataset(x, y), lane_batch=4, epochs=3):
        run.step(F.cross_entropy(model(a), b))
    reference = torch.optim.SGD(plain.parameters(), lr=0.1)
    for _ in range(3):
        reference.zero_grad()
        F.cross_entropy(plain(x), y).backward()
        reference.step()
    assert torch.allclose(model.weight, plain.weight, atol=1e-5), (model.weight - plain.weight).abs().max()

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
