"""A curriculum by run.epoch and batch.epoch in the body: noise and augmentation grow with the epochs."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(250)
    data = TensorDataset(torch.randn(130, 6, generator=g), torch.randint(0, 3, (130,), generator=g))
    model = nn.Linear(6, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    run.track(model=model, optimizer=optimizer)
    for batch in run.batches(data, lane_batch=4, epochs=4):
        assert batch.epoch == run.epoch, (batch.epoch, run.epoch)
        x = batch.x + 0.1 * run.epoch * torch.randn_like(batch.x)
        run.step(F.cross_entropy(model(x), batch.y, label_smoothing=0.05 * batch.epoch))

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
