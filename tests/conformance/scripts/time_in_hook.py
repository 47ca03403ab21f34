"""A hook decays the learning rate by seconds that have passed: every worker has another clock."""
# expect: same or refused: differ
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train
import time


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(23)
    data = TensorDataset(torch.randn(144, 4, generator=g), torch.randn(144, 1, generator=g))
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    run.track(model=model, optimizer=optimizer)
    began = time.perf_counter()

    def decay(run):
        optimizer.param_groups[0]["lr"] = 1e-2 / (1 + (time.perf_counter() - began))

    run.every(1, decay)
    for x, y in run.batches(data, lane_batch=4, epochs=3):
        run.step(F.mse_loss(model(x), y))

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
