"""torch.set_num_threads(2) in main, as many notebooks do, with sums that are long enough to be split over threads."""
# expect: same or refused: thread
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


def main(run: train.Run) -> None:
    torch.set_num_threads(2)
    g = torch.Generator().manual_seed(28)
    data = TensorDataset(torch.randn(48, 4, generator=g), torch.randn(48, 1, generator=g))
    model = nn.Sequential(nn.Linear(4, 4096), nn.Tanh(), nn.Linear(4096, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    run.track(model=model, optimizer=optimizer)
    for x, y in run.batches(data, lane_batch=4, epochs=5):
        out = model(x)
        run.step(F.mse_loss(out, y) + 1e-6 * torch.stack([p.pow(2).sum() for p in model.parameters()]).sum())

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
