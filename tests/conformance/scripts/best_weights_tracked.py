"""The best weights kept in a second tracked model, which a hook overwrites; published beside the last ones."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train
import copy


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(194)
    data = TensorDataset(torch.randn(96, 6, generator=g), torch.randint(0, 3, (96,), generator=g))
    valid = TensorDataset(torch.randn(40, 6, generator=g), torch.randint(0, 3, (40,), generator=g))
    model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 3))
    best = copy.deepcopy(model)
    best.register_buffer("loss", torch.tensor(float("inf"), dtype=torch.float64))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    run.track(model=model, best=best, optimizer=optimizer)

    def epoch_end(run):
        found = run.evaluate(lambda b: {"loss": F.cross_entropy(model(b.x), b.y, reduction="sum")}, valid)
        if found["loss"] < best.loss.item():
            best.load_state_dict(model.state_dict() | {"loss": torch.tensor(found["loss"], dtype=torch.float64)})

    run.every_epoch(epoch_end)
    for x, y in run.batches(data, lane_batch=4, epochs=8):
        run.step(F.cross_entropy(model(x), y))
    assert best.loss < 2

    published_1 = run.publish(model, "model")
    published_2 = run.publish(best, "best")
    if run.first:
        print("SHA", published_1.digest)
        print("SHA", published_2.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
