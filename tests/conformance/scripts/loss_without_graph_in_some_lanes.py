"""Detection habit: a lane without positives gives the constant loss torch.tensor(0.) that needs no gradient."""
# expect: same or refused: gradient
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(116)
    data = TensorDataset(torch.randn(144, 6, generator=g), (torch.rand(144, 1, generator=g) < 0.25).float())
    model = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    run.track(model=model, optimizer=optimizer)
    for x, y in run.batches(data, lane_batch=4, epochs=3):
        positive = y[:, 0] > 0
        if positive.any():
            loss = F.softplus(-model(x[positive])).mean()
        else:
            loss = torch.tensor(0.0)
        run.step(loss)
    assert run.completed == 18

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
