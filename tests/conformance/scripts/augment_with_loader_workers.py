"""The same as augment_without_loader_workers.py with loader_workers=2: must print the same SHA as that one."""
# expect: same
import random

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from holdfast import train


class Augmented(Dataset):
    def __init__(self):
        g = torch.Generator().manual_seed(160)
        self.x, self.y = torch.randn(120, 6, generator=g), torch.randint(0, 3, (120,), generator=g)

    def __len__(self):
        return 120

    def __getitem__(self, i):
        x = self.x[i].clone()
        if random.random() < 0.5:
            x = x.flip(0)
        return x + 0.1 * torch.randn(6) + torch.from_numpy(np.random.uniform(-0.1, 0.1, 6)).float(), self.y[i]


def main(run: train.Run) -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    run.track(model=model, optimizer=optimizer)
    for x, y in run.batches(Augmented(), lane_batch=4, epochs=3, loader_workers=2):
        run.step(F.cross_entropy(model(x), y))

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
