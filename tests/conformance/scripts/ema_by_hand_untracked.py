"""An EMA as a deepcopy, updated in a hook, that nobody tracks: right until a worker joins or restarts."""
# expect: same or refused: track
# note: a difference shows only when a worker joins late or the job is restarted
import copy

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(4)
    data = TensorDataset(torch.randn(240, 8, generator=g), torch.randint(0, 3, (240,), generator=g))
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    ema = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    run.track(model=model, optimizer=optimizer)

    @torch.no_grad()
    def update(run):
        for p, q in zip(ema.parameters(), model.parameters()):
            p.mul_(0.9).add_(q, alpha=0.1)

    run.every(1, update)
    for x, y in run.batches(data, lane_batch=4, epochs=3):
        run.step(F.cross_entropy(model(x), y))

    published_1 = run.publish(model, "model")
    published_2 = run.publish(ema, "ema")
    if run.first:
        print("SHA", published_1.digest)
        print("SHA", published_2.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
