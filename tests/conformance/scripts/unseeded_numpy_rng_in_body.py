"""np.random.default_rng() without a seed in the body: fresh entropy from the system for every batch."""
# expect: same or refused:
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train
import numpy as np


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(20)
    data = TensorDataset(torch.randn(144, 4, generator=g), torch.randn(144, 1, generator=g))
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    run.track(model=model, optimizer=optimizer)
    for x, y in run.batches(data, lane_batch=4, epochs=3):
        noise = torch.from_numpy(np.random.default_rng().normal(size=tuple(x.shape))).float()
        run.step(F.mse_loss(model(x + 0.1 * noise), y))

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
