"""Kaggle: a hook keeps a deepcopy of the best state_dict in a closure; after the loop it is loaded and published."""
# expect: same or refused:
# note: a difference shows only when a worker joins late or the job is restarted
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train
import copy


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(193)
    data = TensorDataset(torch.randn(96, 6, generator=g), torch.randint(0, 3, (96,), generator=g))
    valid = TensorDataset(torch.randn(40, 6, generator=g), torch.randint(0, 3, (40,), generator=g))
    model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    run.track(model=model, optimizer=optimizer)
    best = {"loss": float("inf"), "weights": copy.deepcopy(model.state_dict())}

    def epoch_end(run):
        found = run.evaluate(lambda b: {"loss": F.cross_entropy(model(b.x), b.y, reduction="sum")}, valid)
        if found["loss"] < best["loss"]:
            best.update(loss=found["loss"], weights=copy.deepcopy(model.state_dict()), epoch=run.epoch)

    run.every_epoch(epoch_end)
    for x, y in run.batches(data, lane_batch=4, epochs=8):
        run.step(F.cross_entropy(model(x), y))
    model.load_state_dict(best["weights"])

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
