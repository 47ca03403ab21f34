"""k-fold habit: SubsetRandomSampler over a fold; every chosen sample once an epoch, the others never."""
# expect: same
import torch
from sklearn.model_selection import KFold
from torch import nn
from torch.utils.data import Dataset, SubsetRandomSampler

from holdfast import train


class Numbers(Dataset):
    def __len__(self):
        return 60

    def __getitem__(self, i):
        return torch.tensor(i)


class Histogram(nn.Module):
    def __init__(self):
        super().__init__()
        self.seen = nn.Parameter(torch.zeros(60))

    def forward(self, i):
        return -self.seen[i].mean()


def main(run: train.Run) -> None:
    rows, rest = next(iter(KFold(5, shuffle=True, random_state=0).split(range(60))))
    model = Histogram()
    optimizer = torch.optim.SGD(model.parameters(), lr=24.0)  # a step has 24 samples: each counts 1
    run.track(model=model, optimizer=optimizer)
    for batch in run.batches(Numbers(), lane_batch=4, epochs=3, sampler=SubsetRandomSampler(rows.tolist())):
        run.step(model(batch.x))
    assert torch.allclose(model.seen[torch.from_numpy(rest)], torch.zeros(12))
    assert torch.allclose(model.seen[torch.from_numpy(rows)], torch.full((48,), 3.0)), model.seen

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
