"""A running maximum kept as a buffer that forward rebinds (self.max = torch.maximum(...)) instead of writing in place."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 1)
        self.register_buffer("max", torch.zeros(4))
        self.register_buffer("seen", torch.tensor(0))

    def forward(self, x):
        if self.training:
            self.max = torch.maximum(self.max, x.detach().abs().amax(0))
            self.seen = self.seen + 1
        return self.fc(x / self.max.clamp(min=1e-3))


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(37)
    data = TensorDataset(torch.randn(144, 4, generator=g) * torch.tensor([1.0, 5.0, 0.1, 2.0]), torch.randn(144, 1, generator=g))
    model = Scaled()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run.track(model=model, optimizer=optimizer)
    for x, y in run.batches(data, lane_batch=4, epochs=3):
        run.step(F.mse_loss(model(x), y))
    assert int(model.seen) == run.completed, (int(model.seen), run.completed)

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
