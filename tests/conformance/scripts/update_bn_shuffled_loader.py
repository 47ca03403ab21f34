"""update_bn after the loop over a DataLoader with shuffle=True and an augmenting data set: random code after the loop."""
# expect: same
import random

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, update_bn
from torch.utils.data import DataLoader, Dataset

from holdfast import train


class Noisy(Dataset):
    def __init__(self):
        g = torch.Generator().manual_seed(2)
        self.x = torch.randn(96, 5, generator=g)
        self.y = torch.randint(0, 2, (96,), generator=g)

    def __len__(self):
        return 96

    def __getitem__(self, i):
        x = self.x[i] + 0.1 * torch.randn(5) + 0.1 * random.random() + torch.from_numpy(np.random.randn(5)).float() * 0.1
        return x, self.y[i]


def main(run: train.Run) -> None:
    model = nn.Sequential(nn.Linear(5, 10), nn.BatchNorm1d(10), nn.ReLU(), nn.Linear(10, 2))
    swa = AveragedModel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run.track(model=model, swa=swa, optimizer=optimizer)
    run.every_epoch(lambda run: swa.update_parameters(model))
    data = Noisy()
    for x, y in run.batches(data, lane_batch=4, epochs=3):
        run.step(F.cross_entropy(model(x), y))
    update_bn(DataLoader(data, batch_size=16, shuffle=True), swa)
    assert int(swa.n_averaged) == 3

    published = run.publish(swa)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
