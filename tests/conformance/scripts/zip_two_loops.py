"""Domain adaptation with zip(run.batches(source), run.batches(target)): two loops at once."""
# expect: same or refused: loop
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(203)
    source = TensorDataset(torch.randn(96, 6, generator=g), torch.randint(0, 3, (96,), generator=g))
    target = TensorDataset(torch.randn(96, 6, generator=g) + 1)
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    run.track(model=model, optimizer=optimizer)
    for (x, y), (u,) in zip(run.batches(source, lane_batch=4, epochs=3), run.batches(target, lane_batch=4, epochs=3)):
        p = model(u).softmax(1)
        run.step(F.cross_entropy(model(x), y) - 0.1 * (p * p.log()).sum(1).mean())

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
