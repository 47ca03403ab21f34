"""An embedding of 6 MB between small layers: one parameter is larger than what travels in one piece."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(61)
    data = TensorDataset(torch.randint(0, 24000, (60, 5), generator=g), torch.randint(0, 3, (60,), generator=g))
    model = nn.Sequential(nn.EmbeddingBag(24000, 64), nn.Linear(64, 7), nn.Tanh(), nn.Linear(7, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    run.track(model=model, optimizer=optimizer)
    for x, y in run.batches(data, lane_batch=2, epochs=2):
        run.step(F.cross_entropy(model(x), y))

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
