"""A body that depends on the size of its batch (batch.count, a loss normalised by tokens, not by samples)."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(256)
    ids = torch.randint(0, 9, (100, 6), generator=g)
    data = TensorDataset(ids, torch.where(torch.rand(100, 6, generator=g) < 0.5, ids, -100))
    model = nn.Sequential(nn.Embedding(9, 8), nn.Linear(8, 9))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    run.track(model=model, optimizer=optimizer)
    for batch in run.batches(data, lane_batch=4, epochs=3):
        tokens = (batch.y >= 0).sum().clamp(min=1)
        total = F.cross_entropy(model(batch.x).flatten(0, 1), batch.y.flatten(), ignore_index=-100, reduction="sum")
        run.step(total / tokens * (batch.count / len(batch.x)))

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
