"""Semi-supervised habit: next(unlabelled) from a second DataLoader in the body, refilled when it ends."""
# expect: same or refused:
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train
from torch.utils.data import DataLoader


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(204)
    data = TensorDataset(torch.randn(96, 6, generator=g), torch.randint(0, 3, (96,), generator=g))
    unlabelled = DataLoader(TensorDataset(torch.randn(80, 6, generator=g) + 1), batch_size=8)
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    run.track(model=model, optimizer=optimizer)
    iterator = iter(unlabelled)
    for x, y in run.batches(data, lane_batch=4, epochs=3):
        try:
            (u,) = next(iterator)
        except StopIteration:
            iterator = iter(unlabelled)
            (u,) = next(iterator)
        p = model(u).softmax(1)
        run.step(F.cross_entropy(model(x), y) - 0.1 * (p * p.log()).sum(1).mean())

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
