"""run.log in some lanes only, with weights in NaN's reach, and a hook that sets the rate by what was logged."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(251)
    data = TensorDataset(torch.randn(150, 6, generator=g), torch.randint(0, 3, (150,), generator=g))
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run.track(model=model, optimizer=optimizer)

    def adapt(run):
        if "margin" in run.metrics:
            optimizer.param_groups[0]["lr"] = 0.1 / (1 + abs(run.metrics["margin"]))

    run.every(1, adapt)
    for x, y in run.batches(data, lane_batch=4, epochs=3):
        out = model(x)
        if (out.argmax(1) == y).any():
            run.log("margin", (out.max() - out.mean()).item())
        run.log("norm", out.detach().norm())
        run.step(F.cross_entropy(out, y))

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
