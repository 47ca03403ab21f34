"""Each sample counts exactly once an epoch, with a ragged last step; shown by a histogram that is itself the model."""
# expect: same
import torch
from torch import nn
from torch.utils.data import Dataset

from holdfast import train


class Numbers(Dataset):
    def __len__(self):
        return 67

    def __getitem__(self, i):
        return torch.tensor(i)


class Histogram(nn.Module):
    def __init__(self):
        super().__init__()
        self.seen = nn.Parameter(torch.zeros(67))

    def forward(self, i):
        return -self.seen[i].sum()  # a sum on purpose: see below


def main(run: train.Run) -> None:
    model = Histogram()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    run.track(model=model, optimizer=optimizer)
    for batch in run.batches(Numbers(), lane_batch=4, epochs=3):
        # the mean over a step of n samples gives each 1/n; times n they count 1
        step_size = 24 if run.completed % 3 < 2 else 19
        run.step(model(batch.x) * step_size / batch.count)
    assert run.completed == 9, run.completed
    assert torch.allclose(model.seen, torch.full((67,), 3.0), atol=1e-4), model.seen

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
