"""Complex tensors in the forward pass only (FNet): the parameters are real."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(57)
    data = TensorDataset(torch.randn(144, 8, 4, generator=g), torch.randint(0, 2, (144,), generator=g))
    mix, out = nn.Linear(4, 4), nn.Linear(32, 2)
    model = nn.Sequential(mix, out)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    run.track(model=model, optimizer=optimizer)
    for x, y in run.batches(data, lane_batch=4, epochs=3):
        h = mix(torch.fft.fft2(x).real) + torch.view_as_real(torch.polar(x.abs(), x)).sum(-1)
        run.step(F.cross_entropy(out(h.flatten(1)), y))

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
