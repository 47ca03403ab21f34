"""A running mean in a plain tensor attribute (somebody forgot register_buffer) that forward writes and uses."""
# expect: same or refused:
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


class Forgotten(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 1)
        self.mean = torch.zeros(4)

    def forward(self, x):
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return self.fc(x - self.mean)


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(41)
    data = TensorDataset(torch.randn(144, 4, generator=g) + 3, torch.randn(144, 1, generator=g))
    model = Forgotten()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    run.track(model=model, optimizer=optimizer)
    for x, y in run.batches(data, lane_batch=4, epochs=3):
        run.step(F.mse_loss(model(x), y))

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
