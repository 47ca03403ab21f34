"""Early stopping as everybody writes it, with best and bad in a closure that nobody tracks."""
# expect: same or refused:
# note: a difference shows only when a worker joins late or the job is restarted
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(192)
    data = TensorDataset(torch.randn(96, 6, generator=g), torch.randint(0, 3, (96,), generator=g))
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    run.track(model=model, optimizer=optimizer)
    best, bad = float("inf"), 0

    def epoch_end(run):
        nonlocal best, bad
        if run.metrics["loss"] < best - 0.02:
            best, bad = run.metrics["loss"], 0
        else:
            bad += 1
            if bad == 3:
                run.stop_early()

    run.every_epoch(epoch_end)
    for x, y in run.batches(data, lane_batch=4, epochs=40):
        run.step(F.cross_entropy(model(x), y))
    assert run.completed < 160

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
