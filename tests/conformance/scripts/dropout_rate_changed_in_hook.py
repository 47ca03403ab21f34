"""A hook changes attributes that no state_dict has: the dropout's p, the batch norm's momentum."""
# expect: same or refused:
# note: a difference shows only when a worker joins late or the job is restarted
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(189)
    data = TensorDataset(torch.randn(96, 6, generator=g), torch.randint(0, 3, (96,), generator=g))
    model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    run.track(model=model, optimizer=optimizer)

    def relax(run):
        model[3].p *= 0.7
        model[1].momentum *= 0.5

    run.every_epoch(relax)
    for x, y in run.batches(data, lane_batch=4, epochs=5):
        run.step(F.cross_entropy(model(x), y))

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
