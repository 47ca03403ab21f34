"""while True with next(iterator) and StopIteration instead of a for loop."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(202)
    data = TensorDataset(torch.randn(96, 6, generator=g), torch.randint(0, 3, (96,), generator=g))
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    run.track(model=model, optimizer=optimizer)
    iterator = iter(run.batches(data, lane_batch=4, epochs=3))
    while True:
        try:
            x, y = next(iterator)
        except StopIteration:
            break
        run.step(F.cross_entropy(model(x), y))
    assert run.completed == 12

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
