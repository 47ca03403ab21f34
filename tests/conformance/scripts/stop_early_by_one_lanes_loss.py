"""run.stop_early() when one lane's own loss is small: only the worker with that lane says so."""
# expect: same or refused: stop_early
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(199)
    x = torch.randn(240, 6, generator=g)
    data = TensorDataset(x, (x[:, 0] > 0).long())
    model = nn.Linear(6, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    run.track(model=model, optimizer=optimizer)
    for a, b in run.batches(data, lane_batch=4, epochs=6):
        loss = F.cross_entropy(model(a), b)
        run.step(loss)
        if loss.item() < 0.12:
            run.stop_early()
    assert run.completed < 60, run.completed

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
