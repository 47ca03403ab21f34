"""before_update sees None for a parameter that no lane used in this step, and a mean where only some lanes did."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads = nn.ModuleList(nn.Linear(4, 1) for _ in range(3))

    def forward(self, x, which):
        return self.heads[which](x)


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(78)
    x, y = torch.randn(24, 4, generator=g), torch.randn(24, 1, generator=g)
    model = Heads()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run.track(model=model, optimizer=optimizer)

    @run.before_update
    def check(run):
        assert model.heads[2].weight.grad is None
        assert model.heads[0].weight.grad is not None
        odd = run.completed % 2 == 1
        assert (model.heads[1].weight.grad is None) == odd, (run.completed, model.heads[1].weight.grad)

    for batch in run.batches(TensorDataset(x, y), lane_batch=4, epochs=10):
        which = 1 if run.completed % 2 == 0 and batch.lane == 4 else 0
        run.step(F.mse_loss(model(batch.x, which), batch.y))

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
