"""A complex parameter (a learned filter in the frequency domain) beside real ones, with Adam."""
# expect: same or refused: complex
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


class Spectral(nn.Module):
    def __init__(self):
        super().__init__()
        self.filter = nn.Parameter(torch.randn(5, dtype=torch.complex64))
        self.out = nn.Linear(8, 1)

    def forward(self, x):
        return self.out(torch.fft.irfft(torch.fft.rfft(x) * self.filter, n=8))


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(56)
    data = TensorDataset(torch.randn(144, 8, generator=g), torch.randn(144, 1, generator=g))
    model = Spectral()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    run.track(model=model, optimizer=optimizer)
    for x, y in run.batches(data, lane_batch=4, epochs=4):
        run.step(F.mse_loss(model(x), y))
    assert model.filter.imag.abs().sum() > 0

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
