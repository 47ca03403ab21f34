"""A data set whose augmentation follows run.epoch through a closure, with loader_workers that fetch ahead."""
# expect: same or refused:
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from holdfast import train


class Warming(Dataset):
    def __init__(self, run):
        self.run = run
        self.x = torch.randn(120, 6, generator=torch.Generator().manual_seed(165))

    def __len__(self):
        return 120

    def __getitem__(self, i):
        return self.x[i] + 0.1 * self.run.epoch * torch.randn(6), torch.tensor(i % 3)


def main(run: train.Run) -> None:
    model = nn.Linear(6, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    run.track(model=model, optimizer=optimizer)
    for x, y in run.batches(Warming(run), lane_batch=4, epochs=4, loader_workers=2):
        run.step(F.cross_entropy(model(x), y))

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
