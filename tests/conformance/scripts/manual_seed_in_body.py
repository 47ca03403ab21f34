"""torch.manual_seed(42) at the top of main and torch.manual_seed(step) in the body, left over from a port."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


def main(run: train.Run) -> None:
    torch.manual_seed(42)
    g = torch.Generator().manual_seed(27)
    data = TensorDataset(torch.randn(144, 4, generator=g), torch.randint(0, 2, (144,), generator=g))
    model = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.5), nn.Linear(16, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-1)
    run.track(model=model, optimizer=optimizer)
    for x, y in run.batches(data, lane_batch=4, epochs=3):
        torch.manual_seed(run.completed)
        run.step(F.cross_entropy(model(x), y))

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
