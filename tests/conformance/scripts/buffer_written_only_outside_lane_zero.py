"""A buffer that only lane 5's batches write (a class seen by index): lane 0's copy is what the step leaves behind."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


class Marks(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 3)
        self.register_buffer("count", torch.zeros(6, dtype=torch.long))

    def forward(self, x, lane):
        self.count[lane] += 1
        return self.fc(x) * (1 + 0.01 * self.count.sum())


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(259)
    data = TensorDataset(torch.randn(96, 6, generator=g), torch.randint(0, 3, (96,), generator=g))
    model = Marks()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    run.track(model=model, optimizer=optimizer)
    for batch in run.batches(data, lane_batch=4, epochs=3):
        run.step(F.cross_entropy(model(batch.x, batch.lane), batch.y))
    assert model.count.tolist() == [12, 0, 0, 0, 0, 0], model.count

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
