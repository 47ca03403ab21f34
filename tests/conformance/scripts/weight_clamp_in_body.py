"""WGAN's clamp left in the body, after run.step: for all but the last lane it clamps weights before the update."""
# expect: same or refused:
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(69)
    data = TensorDataset(torch.randn(150, 4, generator=g), torch.randn(150, 1, generator=g))
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.RMSprop(model.parameters(), lr=5e-3)
    run.track(model=model, optimizer=optimizer)
    for x, y in run.batches(data, lane_batch=4, epochs=3):
        run.step(F.mse_loss(model(x), y))
        for p in model.parameters():
            p.data.clamp_(-0.05, 0.05)

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
