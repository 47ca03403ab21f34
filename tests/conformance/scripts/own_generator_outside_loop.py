"""A torch.Generator made once before the loop draws the noise of every batch: it remembers how many lanes this worker had."""
# expect: same or refused:
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(16)
    data = TensorDataset(torch.randn(144, 4, generator=g), torch.randn(144, 1, generator=g))
    noise = torch.Generator().manual_seed(1234)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    run.track(model=model, optimizer=optimizer)
    for x, y in run.batches(data, lane_batch=4, epochs=3):
        x = x + 0.3 * torch.randn(x.shape, generator=noise)
        run.step(F.mse_loss(model(x), y))

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
