"""Early stopping with its counters in a tracked object that has state_dict and load_state_dict."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


class Patience:
    def __init__(self, limit):
        self.limit, self.best, self.bad = limit, float("inf"), 0

    def state_dict(self):
        return {"best": self.best, "bad": self.bad}

    def load_state_dict(self, state):
        self.best, self.bad = state["best"], state["bad"]

    def __call__(self, value):
        self.best, self.bad = (value, 0) if value < self.best - 0.05 else (self.best, self.bad + 1)
        return self.bad >= self.limit


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(191)
    data = TensorDataset(torch.randn(96, 6, generator=g), torch.randint(0, 3, (96,), generator=g))
    valid = TensorDataset(torch.randn(40, 6, generator=g), torch.randint(0, 3, (40,), generator=g))
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    patience = Patience(2)
    run.track(model=model, optimizer=optimizer, patience=patience)

    def epoch_end(run):
        found = run.evaluate(lambda b: {"loss": F.cross_entropy(model(b.x), b.y, reduction="sum")}, valid)
        if patience(found["loss"]):
            run.stop_early()

    run.every_epoch(epoch_end)
    for x, y in run.batches(data, lane_batch=4, epochs=40):
        run.step(F.cross_entropy(model(x), y))
    assert run.completed < 160 and run.completed % 4 == 0, run.completed
    assert patience.bad == 2

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
