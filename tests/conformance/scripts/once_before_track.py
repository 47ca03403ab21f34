"""run.once finds out something that shapes the model (the number of classes), so it comes before run.track."""
# expect: same or refused: once
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(302)
    x, y = torch.randn(96, 6, generator=g), torch.randint(0, 5, (96,), generator=g)
    classes = run.once(lambda: int(y.max()) + 1)
    model = nn.Linear(6, classes)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    run.track(model=model, optimizer=optimizer)
    for a, b in run.batches(TensorDataset(x, y), lane_batch=4, epochs=3):
        run.step(F.cross_entropy(model(a), b))

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
