"""A hook looks for dead ReLU units on a fixed probe and gives them new random weights and a clean Adam state."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(14)
    data = TensorDataset(torch.randn(144, 6, generator=g), torch.randint(0, 3, (144,), generator=g))
    probe = torch.randn(32, 6, generator=g)
    first, last = nn.Linear(6, 24), nn.Linear(24, 3)
    model = nn.Sequential(first, nn.ReLU(), last)
    with torch.no_grad():
        first.bias[::3] = -20.0
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    run.track(model=model, optimizer=optimizer)

    @torch.no_grad()
    def revive(run):
        dead = ~(first(probe) > 0).any(0)
        fresh = nn.Linear(6, 24)
        first.weight[dead] = fresh.weight[dead]
        first.bias[dead] = 0.0
        last.weight[:, dead] = 0.01 * torch.randn(3, int(dead.sum()))
        for key in ("exp_avg", "exp_avg_sq"):
            optimizer.state[first.weight][key][dead] = 0
            optimizer.state[last.weight][key][:, dead] = 0

    run.every(5, revive)
    for x, y in run.batches(data, lane_batch=4, epochs=4):
        run.step(F.cross_entropy(model(x), y))
    assert (first.bias[::3] > -10).all()

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
