"""A data set that augments with self.rng = np.random.default_rng(0), made in __init__: the most usual stateful data set."""
# expect: same or refused:
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from holdfast import train


class Own(Dataset):
    def __init__(self):
        self.x = torch.randn(120, 6, generator=torch.Generator().manual_seed(161))
        self.rng = np.random.default_rng(0)

    def __len__(self):
        return 120

    def __getitem__(self, i):
        return self.x[i] + torch.from_numpy(self.rng.normal(size=6)).float(), torch.tensor(i % 3)


def main(run: train.Run) -> None:
    model = nn.Linear(6, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    run.track(model=model, optimizer=optimizer)
    for x, y in run.batches(Own(), lane_batch=4, epochs=3):
        run.step(F.cross_entropy(model(x), y))

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
