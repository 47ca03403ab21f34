"""train.WeightedSampler for an imbalanced set: the rare class must come up about as often as the other."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(150)
    y = (torch.arange(240) % 12 == 0).long()
    x = torch.randn(240, 4, generator=g) + y[:, None]
    weights = torch.where(y == 1, 11.0, 1.0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    share = nn.Module()
    share.register_buffer("sum", torch.tensor(0.0, dtype=torch.float64))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    run.track(model=model, share=share, optimizer=optimizer)

    def note(run):
        share.sum += run.metrics["positive"]

    run.every(1, note)
    sampler = train.WeightedSampler(weights.tolist(), count=240)
    for a, b in run.batches(TensorDataset(x, y), lane_batch=4, epochs=4, sampler=sampler):
        run.log("positive", b.float().mean().item())
        run.step(F.cross_entropy(model(a), b))
    assert run.completed == 40, run.completed
    assert 0.4 < share.sum.item() / 40 < 0.6, share.sum.item() / 40

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
