"""The body sets the learning rate from run.completed (pure), but in a ragged last step some workers run no body at all."""
# expect: same or refused:
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(172)
    data = TensorDataset(torch.randn(26, 6, generator=g), torch.randint(0, 3, (26,), generator=g))
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    run.track(model=model, optimizer=optimizer)
    for x, y in run.batches(data, lane_batch=4, epochs=8):  # steps of 24 and of 2 samples
        for group in optimizer.param_groups:
            group["lr"] = 0.5 * 0.9**run.completed
        run.step(F.cross_entropy(model(x), y))

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
