"""Two loops: the head first, then everything is thawed between them and an optimizer group added."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(83)
    data = TensorDataset(torch.randn(144, 6, generator=g), torch.randint(0, 3, (144,), generator=g))
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    body = model[:2].requires_grad_(False)
    frozen = model[0].weight.detach().clone()
    optimizer = torch.optim.SGD(model[3].parameters(), lr=0.1, momentum=0.9)
    run.track(model=model, optimizer=optimizer)
    for x, y in run.batches(data, lane_batch=4, epochs=2):
        run.step(F.cross_entropy(model(x), y))
    assert torch.equal(frozen, model[0].weight) or run.completed > 12
    body.requires_grad_(True)
    optimizer.add_param_group({"params": list(body.parameters()), "lr": 0.01})
    for x, y in run.batches(data, lane_batch=4, epochs=2):
        run.step(F.cross_entropy(model(x), y))
    assert run.completed == 24 and not torch.equal(frozen, model[0].weight)

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
