"""25 samples for six lanes of 4: the last step has one sample, which cannot be helped."""
# expect: same or refused: drop_last
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(170)
    data = TensorDataset(torch.randn(25, 6, generator=g), torch.randint(0, 3, (25,), generator=g))
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    run.track(model=model, optimizer=optimizer)
    for batch in run.batches(data, lane_batch=4, epochs=4):
        run.step(F.cross_entropy(model(batch.x), batch.y))

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
