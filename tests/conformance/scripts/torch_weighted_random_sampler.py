"""torch's WeightedRandomSampler object given as sampler=, without a generator of its own."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train
from torch.utils.data import WeightedRandomSampler


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(151)
    x, y = torch.randn(144, 4, generator=g), (torch.arange(144) % 6 == 0).long()
    sampler = WeightedRandomSampler(torch.where(y == 1, 5.0, 1.0), num_samples=96, replacement=True)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    run.track(model=model, optimizer=optimizer)
    for a, b in run.batches(TensorDataset(x, y), lane_batch=4, epochs=4, sampler=sampler):
        run.step(F.cross_entropy(model(a), b))
    assert run.completed == 16, run.completed

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
