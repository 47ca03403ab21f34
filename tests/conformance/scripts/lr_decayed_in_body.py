"""The body multiplies the learning rate by 0.99: once a lane, so as often as this worker has lanes."""
# expect: same or refused:
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(173)
    data = TensorDataset(torch.randn(144, 6, generator=g), torch.randint(0, 3, (144,), generator=g))
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    run.track(model=model, optimizer=optimizer)
    for x, y in run.batches(data, lane_batch=4, epochs=3):
        run.step(F.cross_entropy(model(x), y))
        optimizer.param_groups[0]["lr"] *= 0.99

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
