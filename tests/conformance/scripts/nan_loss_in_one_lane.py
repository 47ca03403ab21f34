"""One lane's loss is NaN once (log of a negative number): either everybody has NaN, or the job says so."""
# expect: same or refused: nan
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(261)
    data = TensorDataset(torch.randn(96, 6, generator=g), torch.randint(0, 3, (96,), generator=g))
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    run.track(model=model, optimizer=optimizer)

    def repair(run):
        with torch.no_grad():
            for p in model.parameters():
                p.nan_to_num_(nan=0.1)

    run.every(1, repair)
    for batch in run.batches(data, lane_batch=4, epochs=3):
        loss = F.cross_entropy(model(batch.x), batch.y)
        if run.completed == 5 and batch.lane == 2:
            loss = loss * torch.log(torch.tensor(-1.0))
        run.step(loss)
    assert torch.isfinite(model.weight).all()

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
