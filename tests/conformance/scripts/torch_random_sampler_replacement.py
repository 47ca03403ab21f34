"""RandomSampler(replacement=True, num_samples=...) with a generator of its own, and SequentialSampler in a second loop."""
# expect: same or refused: generator
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train
from torch.utils.data import RandomSampler, SequentialSampler


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(152)
    data = TensorDataset(torch.randn(100, 4, generator=g), torch.randint(0, 2, (100,), generator=g))
    own = torch.Generator().manual_seed(5)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    run.track(model=model, optimizer=optimizer)
    sampler = RandomSampler(data, replacement=True, num_samples=72, generator=own)
    for x, y in run.batches(data, lane_batch=4, epochs=3, sampler=sampler):
        run.step(F.cross_entropy(model(x), y))
    for x, y in run.batches(data, lane_batch=4, epochs=1, sampler=SequentialSampler(data)):
        run.step(F.cross_entropy(model(x), y))
    assert run.completed == 9 + 5, run.completed

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
