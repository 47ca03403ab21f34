"""A range test: rates rise in a hook, losses are kept in a closure, weights are restored, then training with the best rate."""
# expect: same or refused:
# note: the closure is lost when the job is restarted in the second loop
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train
import copy


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(222)
    data = TensorDataset(torch.randn(240, 6, generator=g), torch.randint(0, 3, (240,), generator=g))
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    run.track(model=model, optimizer=optimizer)
    weights, state = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
    curve = []

    def raise_rate(run):
        if len(curve) < 10:
            group = optimizer.param_groups[0]
            curve.append((run.metrics["loss"], group["lr"]))
            group["lr"] *= 2.5

    run.every(1, raise_rate)
    for x, y in run.batches(data, lane_batch=4, epochs=1):
        run.step(F.cross_entropy(model(x), y))
    model.load_state_dict(weights)
    optimizer.load_state_dict(state)
    best = min(curve)[1] / 2
    for group in optimizer.param_groups:
        group["lr"] = best
    for x, y in run.batches(data, lane_batch=4, epochs=1):
        run.step(F.cross_entropy(model(x), y))
    assert run.completed == 20

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
