"""The body seeds torch from os.urandom, 'to be really random'."""
# expect: same or refused:
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train
import os


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(21)
    data = TensorDataset(torch.randn(144, 4, generator=g), torch.randn(144, 1, generator=g))
    model = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.5), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    run.track(model=model, optimizer=optimizer)
    for x, y in run.batches(data, lane_batch=4, epochs=3):
        torch.manual_seed(int.from_bytes(os.urandom(4), "little"))
        run.step(F.mse_loss(model(x), y))

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
