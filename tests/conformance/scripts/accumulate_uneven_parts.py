"""run.accumulate(3) with lane_batch 4 and a ragged last step: still the mean over all samples, checked."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train
import copy


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(211)
    x, y = torch.randn(19, 5, generator=g), torch.randn(19, 1, generator=g)  # one ragged step an epoch
    model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 1))
    plain = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    run.track(model=model, optimizer=optimizer)
    run.accumulate(3)
    for a, b in run.batches(TensorDataset(x, y), lane_batch=4, epochs=10):
        run.step(F.mse_loss(model(a), b))
    assert run.completed == 10, run.completed
    reference = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    for _ in range(10):
        reference.zero_grad()
        F.mse_loss(plain(x), y).backward()
        reference.step()
    for p, q in zip(model.parameters(), plain.parameters()):
        assert torch.allclose(p, q, atol=1e-5), (p - q).abs().max()

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
