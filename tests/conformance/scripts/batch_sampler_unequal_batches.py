"""A batch_sampler function with batches of 1 to 7 samples (token budgets): the mean must be over samples, not over batches."""
# expect: same
import torch
from torch import nn
from torch.utils.data import Dataset

from holdfast import train


class Numbers(Dataset):
    def __len__(self):
        return 84

    def __getitem__(self, i):
        return torch.tensor(i)


class Histogram(nn.Module):
    def __init__(self):
        super().__init__()
        self.seen = nn.Parameter(torch.zeros(84))

    def forward(self, i):
        return -self.seen[i].mean()


SIZES = [1, 3, 7, 2, 4, 4] * 4  # 21 samples a step of six lanes


def batches(epoch, seed):
    order = torch.randperm(84, generator=torch.Generator().manual_seed(seed * 1000 + epoch)).tolist()
    lists = []
    for size in SIZES:
        lists.append([order.pop() for _ in range(size)])
    return lists


def main(run: train.Run) -> None:
    model = Histogram()
    optimizer = torch.optim.SGD(model.parameters(), lr=21.0)
    run.track(model=model, optimizer=optimizer)
    for batch in run.batches(Numbers(), epochs=3, batch_sampler=batches):
        run.step(model(batch.x))
    assert run.completed == 12, run.completed
    assert torch.allclose(model.seen, torch.full((84,), 3.0), atol=1e-4), model.seen

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
