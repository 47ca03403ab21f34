"""A centre (as in DINO) is register_buffer('centre', None) and gets its tensor in the first forward pass."""
# expect: same or refused: buffer
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


class Centred(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 3)
        self.register_buffer("centre", None)

    def forward(self, x):
        z = self.fc(x)
        if self.centre is None:
            self.centre = z.detach().mean(0)
        elif self.training:
            self.centre = 0.9 * self.centre + 0.1 * z.detach().mean(0)
        return z - self.centre


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(40)
    data = TensorDataset(torch.randn(144, 4, generator=g), torch.randint(0, 3, (144,), generator=g))
    model = Centred()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run.track(model=model, optimizer=optimizer)
    for x, y in run.batches(data, lane_batch=4, epochs=3):
        run.step(F.cross_entropy(model(x), y))

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
