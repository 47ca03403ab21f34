"""before_update takes gradients away (p.grad = None) and replaces others by new tensors; Adam must pass those over."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(76)
    data = TensorDataset(torch.randn(144, 6, generator=g), torch.randint(0, 3, (144,), generator=g))
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=0.1)
    run.track(model=model, optimizer=optimizer)

    @run.before_update
    def choose(run):
        model[2].weight.grad = model[2].weight.grad.sign()
        if run.completed % 3 == 0:
            model[0].bias.grad = None

    for x, y in run.batches(data, lane_batch=4, epochs=3):
        run.step(F.cross_entropy(model(x), y))
    assert run.completed == 18
    assert int(optimizer.state[model[0].bias]["step"]) == 12, optimizer.state[model[0].bias]["step"]

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
