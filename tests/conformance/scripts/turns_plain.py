"""train.turns without more: every (step, lane) exactly once, checked by a histogram, and own data by (step, lane)."""
# expect: same
import torch
from torch import nn

from holdfast import train


class Histogram(nn.Module):
    def __init__(self):
        super().__init__()
        self.seen = nn.Parameter(torch.zeros(10, 6))
        self.w = nn.Parameter(torch.zeros(4))


def main(run: train.Run) -> None:
    x = torch.randn(10, 6, 3, 4, generator=torch.Generator().manual_seed(300))
    model = Histogram()
    optimizer = torch.optim.SGD(model.parameters(), lr=6.0)
    run.track(model=model, optimizer=optimizer)
    for turn in train.turns(run, 10):
        fit = ((x[turn.step, turn.lane] @ model.w - 1) ** 2).mean()
        run.step(-model.seen[turn.step, turn.lane], 1e-3 * fit)
    assert run.completed == 10, run.completed
    assert torch.allclose(model.seen, torch.ones(10, 6)), model.seen

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
