"""Leftover of a port: scaler.scale(loss), scaler.step(optimizer), scaler.update() in the body."""
# expect: refused: scale
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(110)
    data = TensorDataset(torch.randn(96, 6, generator=g), torch.randint(0, 3, (96,), generator=g))
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=128.0)
    run.track(model=model, optimizer=optimizer, scaler=scaler)
    for x, y in run.batches(data, lane_batch=4, epochs=2):
        run.step(scaler.scale(F.cross_entropy(model(x), y)))
        scaler.update()

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
