"""Pruning begins in the middle, in a hook: the parameter 'weight' is renamed 'weight_orig' and a mask appears."""
# expect: same or refused:
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train
from torch.nn.utils import prune


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(52)
    data = TensorDataset(torch.randn(144, 6, generator=g), torch.randint(0, 3, (144,), generator=g))
    model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    run.track(model=model, optimizer=optimizer)

    def cut(run):
        if run.epoch == 2:
            prune.l1_unstructured(model[0], "weight", amount=0.5)

    run.every_epoch(cut)
    for x, y in run.batches(data, lane_batch=4, epochs=4):
        run.step(F.cross_entropy(model(x), y))
    assert int((model[0].weight == 0).sum()) == 36

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
