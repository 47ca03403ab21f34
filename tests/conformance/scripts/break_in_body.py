"""A plain `break` out of the loop's body when the mean loss is low enough, then code after the loop."""
# expect: same or refused: body
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(200)
    data = TensorDataset(torch.randn(240, 6, generator=g), torch.randint(0, 3, (240,), generator=g))
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    run.track(model=model, optimizer=optimizer)
    for x, y in run.batches(data, lane_batch=4, epochs=4):
        if run.completed == 9:
            break
        run.step(F.cross_entropy(model(x), y))
    assert run.completed == 9, run.completed

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
