"""A running scale in a buffer with persistent=False: written in forward, but in no state_dict."""
# expect: same or refused: persistent
# note: a difference between workers shows at once; what a joiner lacks shows only with a join
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 1)
        self.register_buffer("scale", torch.ones(()), persistent=False)

    def forward(self, x):
        if self.training:
            self.scale.mul_(0.9).add_(0.1 * x.detach().std())
        return self.fc(x) / self.scale


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(39)
    data = TensorDataset(torch.randn(144, 4, generator=g) * 3, torch.randn(144, 1, generator=g))
    model = Normed()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run.track(model=model, optimizer=optimizer)
    for x, y in run.batches(data, lane_batch=4, epochs=3):
        run.step(F.mse_loss(model(x), y))

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
