"""torch.compile(model, backend='eager'): the compiled module is tracked and stepped, the original published."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(62)
    data = TensorDataset(torch.randn(120, 6, generator=g), torch.randint(0, 3, (120,), generator=g))
    original = nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Dropout(0.2), nn.Linear(12, 3))
    model = torch.compile(original, backend="eager")
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)  # type: ignore[attr-defined]
    run.track(model=model, optimizer=optimizer)
    for x, y in run.batches(data, lane_batch=4, epochs=3, drop_last=True):
        run.step(F.cross_entropy(model(x), y))
    assert int(original[1].num_batches_tracked) == run.completed

    published = run.publish(original)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
