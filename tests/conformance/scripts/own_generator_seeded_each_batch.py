"""A generator of one's own, seeded for each batch from the step and the lane: keeps the rule."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(17)
    data = TensorDataset(torch.randn(144, 4, generator=g), torch.randn(144, 1, generator=g))
    noise = torch.Generator()
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    run.track(model=model, optimizer=optimizer)
    for batch in run.batches(data, lane_batch=4, epochs=3):
        noise.manual_seed(run.completed * 1000 + batch.lane)
        x = batch.x + 0.3 * torch.randn(batch.x.shape, generator=noise)
        run.step(F.mse_loss(model(x), batch.y))

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
