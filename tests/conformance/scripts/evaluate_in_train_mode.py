"""model.eval() was forgotten before run.evaluate: dropout draws, and batch norm's buffers move, on whoever evaluates."""
# expect: same or refused:
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(186)
    data = TensorDataset(torch.randn(96, 6, generator=g), torch.randint(0, 3, (96,), generator=g))
    valid = TensorDataset(torch.randn(48, 6, generator=g) + 3, torch.randint(0, 3, (48,), generator=g))
    model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    run.track(model=model, optimizer=optimizer)

    def epoch_end(run):
        found = run.evaluate(lambda b: {"loss": F.cross_entropy(model(b.x), b.y, reduction="sum")}, valid)
        optimizer.param_groups[0]["lr"] = 0.01 * found["loss"]

    run.every_epoch(epoch_end)
    for x, y in run.batches(data, lane_batch=4, epochs=4):
        run.step(F.cross_entropy(model(x), y))

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
