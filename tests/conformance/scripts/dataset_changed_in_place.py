"""__getitem__ augments the stored row in place (x = self.x[i]; x += noise): noise piles up in this worker's memory."""
# expect: same or refused:
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from holdfast import train


class InPlace(Dataset):
    def __init__(self):
        self.x = torch.randn(120, 6, generator=torch.Generator().manual_seed(162))

    def __len__(self):
        return 120

    def __getitem__(self, i):
        x = self.x[i]
        x += 0.1 * torch.randn(6)
        return x, torch.tensor(i % 3)


def main(run: train.Run) -> None:
    model = nn.Linear(6, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    run.track(model=model, optimizer=optimizer)
    for x, y in run.batches(InPlace(), lane_batch=4, epochs=4):
        run.step(F.cross_entropy(model(x), y))

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
