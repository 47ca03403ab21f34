"""A batch without positives is skipped with `continue`: its lane never calls run.step."""
# expect: same or refused: run.step
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(114)
    data = TensorDataset(torch.randn(144, 6, generator=g), (torch.rand(144, 1, generator=g) < 0.25).float())
    model = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run.track(model=model, optimizer=optimizer)
    for x, y in run.batches(data, lane_batch=4, epochs=2):
        if y.sum() == 0:
            continue
        run.step(F.binary_cross_entropy_with_logits(model(x), y))

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
