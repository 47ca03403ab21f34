"""A forward hook registered on a layer keeps activation statistics in a list, and an epoch hook rescales weights by them."""
# expect: same or refused:
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(257)
    data = TensorDataset(torch.randn(96, 6, generator=g), torch.randint(0, 3, (96,), generator=g))
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run.track(model=model, optimizer=optimizer)
    seen = []
    model[1].register_forward_hook(lambda m, i, o: seen.append(o.detach().std().item()))

    def rescale(run):
        with torch.no_grad():
            model[0].weight.div_(1 + sum(seen) / len(seen))
        seen.clear()

    run.every_epoch(rescale)
    for x, y in run.batches(data, lane_batch=4, epochs=4):
        run.step(F.cross_entropy(model(x), y))

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
