"""Net2Net: a hook replaces the hidden layer by a wider one and gives the optimizer the new parameters."""
# expect: same or refused:
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(53)
    data = TensorDataset(torch.randn(144, 6, generator=g), torch.randint(0, 3, (144,), generator=g))
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    run.track(model=model, optimizer=optimizer)

    def grow(run):
        if run.epoch != 2:
            return
        wide_in, wide_out = nn.Linear(6, 16), nn.Linear(16, 3)
        with torch.no_grad():
            wide_in.weight[:8], wide_in.bias[:8] = model[0].weight, model[0].bias
            wide_out.weight[:, :8], wide_out.bias[:] = model[2].weight, model[2].bias
            wide_out.weight[:, 8:] = 0
        model[0], model[2] = wide_in, wide_out
        optimizer.param_groups.clear()
        optimizer.state.clear()
        optimizer.add_param_group({"params": list(model.parameters()), "lr": 0.05})

    run.every_epoch(grow)
    for x, y in run.batches(data, lane_batch=4, epochs=4):
        run.step(F.cross_entropy(model(x), y))
    assert model[0].weight.shape == (16, 6)

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
