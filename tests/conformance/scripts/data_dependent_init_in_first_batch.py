"""ActNorm / LSUV: parameters are initialised in place from the first batch seen, in forward, behind a flag."""
# expect: same or refused:
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


class ActNorm(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.bias, self.log_scale = nn.Parameter(torch.zeros(n)), nn.Parameter(torch.zeros(n))
        self.register_buffer("ready", torch.tensor(False))

    def forward(self, x):
        if not self.ready:
            with torch.no_grad():
                self.bias.copy_(-x.mean(0))
                self.log_scale.copy_(-x.std(0).clamp(min=1e-3).log())
                self.ready.fill_(True)
        return (x + self.bias) * self.log_scale.exp()


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(258)
    data = TensorDataset(5 + 3 * torch.randn(96, 6, generator=g), torch.randint(0, 3, (96,), generator=g))
    model = nn.Sequential(ActNorm(6), nn.Linear(6, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    run.track(model=model, optimizer=optimizer)
    for x, y in run.batches(data, lane_batch=4, epochs=3):
        run.step(F.cross_entropy(model(x), y))
    assert bool(model[0].ready)

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
