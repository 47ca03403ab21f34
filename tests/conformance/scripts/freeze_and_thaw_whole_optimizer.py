"""All parameters are in the optimizer from the start; a hook freezes and thaws by requires_grad only, Adam state stays."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(82)
    data = TensorDataset(torch.randn(144, 6, generator=g), torch.randint(0, 3, (144,), generator=g))
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    run.track(model=model, optimizer=optimizer)
    run.every_epoch(lambda run: model[0].requires_grad_(run.epoch % 2 == 0))
    for x, y in run.batches(data, lane_batch=4, epochs=4):
        run.step(F.cross_entropy(model(x), y))
    assert int(optimizer.state[model[2].weight]["step"]) == 24
    assert int(optimizer.state[model[0].weight]["step"]) == 12, optimizer.state[model[0].weight]["step"]

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
