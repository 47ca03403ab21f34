"""ReduceLROnPlateau (every='never') is stepped in an epoch hook with the validation loss from run.evaluate."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(184)
    data = TensorDataset(torch.randn(96, 6, generator=g), torch.randint(0, 3, (96,), generator=g))
    valid = TensorDataset(torch.randn(37, 6, generator=g), torch.randint(0, 3, (37,), generator=g))
    model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
    run.track(model=model, optimizer=optimizer)
    run.track(scheduler=scheduler, every="never")

    def epoch_end(run):
        model.eval()
        found = run.evaluate(lambda b: {"loss": F.cross_entropy(model(b.x), b.y, reduction="sum")}, valid)
        model.train()
        scheduler.step(found["loss"])

    run.every_epoch(epoch_end)
    for x, y in run.batches(data, lane_batch=4, epochs=6):
        run.step(F.cross_entropy(model(x), y))
    assert optimizer.param_groups[0]["lr"] < 0.05

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
