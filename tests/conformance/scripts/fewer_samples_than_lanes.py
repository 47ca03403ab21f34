"""Four samples for six lanes, lane_batch 1: two lanes never have any; checked beside a plain full-batch loop."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train
import copy


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(171)
    x, y = torch.randn(4, 6, generator=g), torch.randint(0, 3, (4,), generator=g)
    model = nn.Linear(6, 3)
    plain = copy.deepcopy(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    run.track(model=model, optimizer=optimizer)
    for a, b in run.batches(TensorDataset(x, y), lane_batch=1, epochs=12):
        run.step(F.cross_entropy(model(a), b))
    assert run.completed == 12
    reference = torch.optim.Adam(plain.parameters(), lr=1e-2)
    for _ in range(12):
        reference.zero_grad()
        F.cross_entropy(plain(x), y).backward()
        reference.step()
    assert torch.allclose(model.weight, plain.weight, atol=1e-4), (model.weight - plain.weight).abs().max()

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
