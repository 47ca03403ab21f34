"""A ragged last step where lane 0 may have no sample: whose buffers does the step leave behind?"""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(260)
    data = TensorDataset(torch.randn(27, 3, 5, generator=g), torch.randint(0, 3, (27,), generator=g))
    model = nn.Sequential(nn.Conv1d(3, 4, 3), nn.BatchNorm1d(4), nn.ReLU(), nn.Flatten(), nn.Linear(12, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    run.track(model=model, optimizer=optimizer)
    for x, y in run.batches(data, lane_batch=4, epochs=6):  # steps of 24 and of 3 samples
        run.step(F.cross_entropy(model(x), y))
    assert run.completed == 12
    assert int(model[1].num_batches_tracked) == 12, int(model[1].num_batches_tracked)

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
