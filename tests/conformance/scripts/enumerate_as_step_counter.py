"""`for i, batch in enumerate(run.batches(...))`, and i decides what the loss is: it counts this worker's lanes."""
# expect: same or refused:
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(44)
    data = TensorDataset(torch.randn(144, 6, generator=g), torch.randint(0, 3, (144,), generator=g))
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    run.track(model=model, optimizer=optimizer)
    for i, (x, y) in enumerate(run.batches(data, lane_batch=4, epochs=3)):
        smoothing = 0.2 if i < 20 else 0.0
        run.step(F.cross_entropy(model(x), y, label_smoothing=smoothing))

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
