"""run.stop_early() in the body, behind run.step, when run.completed says so: the same for all lanes, checked for the exact step."""
# expect: refused: before run.step
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(198)
    data = TensorDataset(torch.randn(240, 6, generator=g), torch.randint(0, 3, (240,), generator=g))
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    run.track(model=model, optimizer=optimizer)
    for x, y in run.batches(data, lane_batch=4, epochs=4):
        run.step(F.cross_entropy(model(x), y))
        if run.metrics and run.metrics["loss"] > 0 and run.completed >= 13:
            run.stop_early()
    # stop_early is seen after step 13 or by the lanes of step 14, but by everybody alike
    assert run.completed in (13, 14), run.completed

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
