"""The learning rate, momentum and weight decay are set by hand in hooks, from run.completed and run.metrics."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(174)
    data = TensorDataset(torch.randn(144, 6, generator=g), torch.randint(0, 3, (144,), generator=g))
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    run.track(model=model, optimizer=optimizer)

    def adjust(run):
        group = optimizer.param_groups[0]
        group["lr"] = 0.5 / (1 + run.completed) * run.metrics["loss"]
        group["momentum"] = 0.9 - 0.01 * run.completed
        group["weight_decay"] = 1e-3 * run.epoch

    run.every(1, adjust)
    for x, y in run.batches(data, lane_batch=4, epochs=4):
        run.step(F.cross_entropy(model(x), y))

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
