"""train.turns with run.accumulate(2): as many steps as asked for, and every (step, lane) comes equally often; shown by a histogram."""
# expect: same or refused: accumulate
import torch
from torch import nn

from holdfast import train


class Histogram(nn.Module):
    def __init__(self):
        super().__init__()
        self.seen = nn.Parameter(torch.zeros(8, 6))


def main(run: train.Run) -> None:
    model = Histogram()
    optimizer = torch.optim.SGD(model.parameters(), lr=6.0)
    run.track(model=model, optimizer=optimizer)
    run.accumulate(2)
    for turn in train.turns(run, 8):
        run.step(-model.seen[turn.step, turn.lane])
    assert run.completed == 8, run.completed
    assert torch.allclose(model.seen, torch.ones(8, 6)), model.seen

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
