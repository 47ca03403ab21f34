"""run.once computes the normalisation before the loop and a random factor in a hook; all use what it returned."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(197)
    x, y = 3 + 2 * torch.randn(96, 6, generator=g), torch.randint(0, 3, (96,), generator=g)
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    run.track(model=model, optimizer=optimizer)
    mean, std = run.once(lambda: (x.mean(0).tolist(), x.std(0).tolist()))
    mean, std = torch.tensor(mean), torch.tensor(std)

    def rescale(run):
        factor = run.once(lambda: 1.0 + torch.rand(()).item() * 0.01)
        with torch.no_grad():
            model.weight.mul_(factor)

    run.every_epoch(rescale)
    for a, b in run.batches(TensorDataset(x, y), lane_batch=4, epochs=4):
        run.step(F.cross_entropy(model((a - mean) / std), b))

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
