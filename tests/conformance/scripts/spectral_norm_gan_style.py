"""Old-style torch.nn.utils.spectral_norm: its power iteration writes the buffer u in every training forward pass."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train
from torch.nn.utils import spectral_norm


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(31)
    data = TensorDataset(torch.randn(144, 6, generator=g), torch.randint(0, 2, (144,), generator=g).float())
    model = nn.Sequential(spectral_norm(nn.Linear(6, 16)), nn.LeakyReLU(0.2), spectral_norm(nn.Linear(16, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, betas=(0.0, 0.9))
    run.track(model=model, optimizer=optimizer)
    for x, y in run.batches(data, lane_batch=4, epochs=3):
        real, fake = model(x), model(x.flip(0) + 1)  # two forward passes, so the buffer moves twice
        run.step(F.relu(1 - real).mean() + F.relu(1 + fake).mean())

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
