"""Two schedulers on one optimizer: CosineAnnealingWarmRestarts every step and ExponentialLR every epoch."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(182)
    data = TensorDataset(torch.randn(120, 6, generator=g), torch.randint(0, 3, (120,), generator=g))
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    restarts = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=4, T_mult=2)
    decay = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)
    run.track(model=model, optimizer=optimizer, restarts=restarts)
    run.track(decay=decay, every="epoch")
    for x, y in run.batches(data, lane_batch=4, epochs=4):
        run.step(F.cross_entropy(model(x), y))
    assert restarts.T_i == 16 or restarts.T_cur >= 0

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
