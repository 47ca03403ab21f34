"""A module with get_extra_state/set_extra_state keeps a Python number that forward changes (as fp8 scaling recipes do)."""
# expect: same or refused:
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


class Recipe(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 3)
        self.amax = 1.0

    def get_extra_state(self):
        return {"amax": self.amax}

    def set_extra_state(self, state):
        self.amax = state["amax"]

    def forward(self, x):
        if self.training:
            self.amax = max(0.99 * self.amax, x.abs().max().item())
        return self.fc(torch.round(x / self.amax * 127) / 127 * self.amax)


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(46)
    data = TensorDataset(torch.randn(144, 4, generator=g), torch.randint(0, 3, (144,), generator=g))
    recipe = Recipe()
    plain = nn.Linear(4, 3)
    plain.weight, plain.bias = recipe.fc.weight, recipe.fc.bias  # extra state cannot be published as a tensor
    optimizer = torch.optim.SGD(recipe.parameters(), lr=0.1)
    run.track(model=recipe, optimizer=optimizer)
    for x, y in run.batches(data, lane_batch=4, epochs=3):
        run.step(F.cross_entropy(recipe(x), y))

    published = run.publish(plain)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
