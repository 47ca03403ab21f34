"""A data set that asks torch.utils.data.get_worker_info() and takes its augmentation strength from the worker's number."""
# expect: same or refused:
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset, get_worker_info

from holdfast import train


class Asking(Dataset):
    def __init__(self):
        self.x = torch.randn(120, 6, generator=torch.Generator().manual_seed(164))

    def __len__(self):
        return 120

    def __getitem__(self, i):
        info = get_worker_info()
        strength = 0.0 if info is None else 0.1 * (1 + info.id)
        return self.x[i] + strength, torch.tensor(i % 3)


def main(run: train.Run) -> None:
    model = nn.Linear(6, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    run.track(model=model, optimizer=optimizer)
    for x, y in run.batches(Asking(), lane_batch=4, epochs=3, loader_workers=2):
        run.step(F.cross_entropy(model(x), y))

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
