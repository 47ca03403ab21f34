"""Many of torch's optimizers side by side, each with a layer of its own; their states are as different as they come."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(235)
    data = TensorDataset(torch.randn(96, 4, generator=g), torch.randn(96, 1, generator=g))
    kinds = ["Adadelta", "Adagrad", "Adam", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD", "Adafactor"]
    kinds = [k for k in kinds if hasattr(torch.optim, k)]
    model = nn.ModuleList(nn.Linear(4, 1) for _ in kinds)
    optimizers = {k.lower(): getattr(torch.optim, k)(m.parameters(), lr=1e-2) for k, m in zip(kinds, model)}
    run.track(model=model, **optimizers)
    for x, y in run.batches(data, lane_batch=4, epochs=4):
        run.step(*[F.mse_loss(m(x), y) for m in model])

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
