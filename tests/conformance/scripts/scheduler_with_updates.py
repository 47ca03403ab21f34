"""OneCycleLR with updates=2: it must step once a batch, after the last update."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(73)
    data = TensorDataset(torch.randn(96, 6, generator=g), torch.randint(0, 3, (96,), generator=g))
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.2, total_steps=13)
    run.track(model=model, optimizer=optimizer, scheduler=scheduler)
    for batch in run.batches(data, lane_batch=4, epochs=3, updates=2):
        run.step(F.cross_entropy(model(batch.x), batch.y))
    assert run.completed == 24 and scheduler.last_epoch == 12, (run.completed, scheduler.last_epoch)

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
