"""An lru_cache around a pure __getitem__: harmless."""
# expect: same
import functools

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from holdfast import train


class Cached(Dataset):
    def __len__(self):
        return 120

    @functools.lru_cache(maxsize=None)  # noqa: B019
    def __getitem__(self, i):
        return torch.randn(6, generator=torch.Generator().manual_seed(i)), torch.tensor(i % 3)


def main(run: train.Run) -> None:
    model = nn.Linear(6, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    run.track(model=model, optimizer=optimizer)
    for x, y in run.batches(Cached(), lane_batch=4, epochs=3):
        run.step(F.cross_entropy(model(x + 0.1 * torch.randn_like(x)), y))

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
