"""try/except around forward and run.step, as people do against out-of-memory: a lane fails once and is skipped."""
# expect: same or refused: run.step
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(262)
    data = TensorDataset(torch.randn(96, 6, generator=g), torch.randint(0, 3, (96,), generator=g))
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    run.track(model=model, optimizer=optimizer)
    for batch in run.batches(data, lane_batch=4, epochs=3):
        try:
            if run.completed == 4 and batch.lane == 1:
                raise RuntimeError("out of memory")
            loss = F.cross_entropy(model(batch.x), batch.y)
            run.step(loss)
        except RuntimeError as error:
            print("skipped a batch:", error)

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
