"""nn.Embedding(sparse=True) deep inside a model, with plain SGD, which could take it."""
# expect: refused: sparse
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(123)
    data = TensorDataset(torch.randint(0, 20, (96, 3), generator=g), torch.randint(0, 2, (96,), generator=g))
    model = nn.Sequential(nn.Sequential(nn.Embedding(20, 4, sparse=True), nn.Flatten()), nn.Linear(12, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run.track(model=model, optimizer=optimizer)
    for x, y in run.batches(data, lane_batch=4, epochs=1):
        run.step(F.cross_entropy(model(x), y))

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
