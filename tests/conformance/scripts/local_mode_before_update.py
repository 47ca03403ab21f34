"""before_update with noise in mode local, where a lane is on its own within a round."""
# expect: same or refused: before_update
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(243)
    data = TensorDataset(torch.randn(192, 6, generator=g), torch.randint(0, 3, (192,), generator=g))
    model = nn.Linear(6, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    run.track(model=model, optimizer=optimizer)
    run.before_update(lambda run: [p.grad.add_(0.01 * torch.randn_like(p)) for p in model.parameters()])
    for x, y in run.batches(data, lane_batch=4, epochs=2):
        run.step(F.cross_entropy(model(x), y))

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6, mode="local", settings={"local_steps": 2})
