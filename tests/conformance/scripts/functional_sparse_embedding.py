"""A sparse gradient that no module shows: F.embedding(..., sparse=True) on a plain parameter, in some lanes only."""
# expect: same or refused: sparse
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


class Table(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(20, 4))

    def forward(self, ids, sparse):
        return F.embedding(ids, self.weight, sparse=sparse)


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(124)
    data = TensorDataset(torch.randint(0, 20, (96,), generator=g), torch.randn(96, 4, generator=g))
    model = Table()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run.track(model=model, optimizer=optimizer)
    for batch in run.batches(data, lane_batch=4, epochs=2):
        run.step(F.mse_loss(model(batch.x, batch.lane % 2 == 0), batch.y))

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
