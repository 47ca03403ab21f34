"""The body keeps a running mean of its own losses and skips easy samples by it (online hard example mining)."""
# expect: same or refused:
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(206)
    data = TensorDataset(torch.randn(144, 6, generator=g), torch.randint(0, 3, (144,), generator=g))
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run.track(model=model, optimizer=optimizer)
    mean = 1.0
    for x, y in run.batches(data, lane_batch=4, epochs=3):
        losses = F.cross_entropy(model(x), y, reduction="none")
        hard = (losses > mean * 0.8).float()
        run.step((losses * (0.5 + hard)).mean())
        mean = 0.9 * mean + 0.1 * losses.mean().item()

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
