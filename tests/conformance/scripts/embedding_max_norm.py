"""nn.Embedding(max_norm=1) shortens rows of its own weight in the forward pass: the body changes parameters in place."""
# expect: same or refused:
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(20, 6, max_norm=1.0)
        self.out = nn.Linear(6, 2)

    def forward(self, ids):
        return self.out(self.table(ids).mean(1))


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(30)
    data = TensorDataset(torch.randint(0, 20, (150, 3), generator=g), torch.randint(0, 2, (150,), generator=g))
    model = Bag()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    run.track(model=model, optimizer=optimizer)
    for x, y in run.batches(data, lane_batch=2, epochs=2):
        run.step(F.cross_entropy(model(x), y))

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
