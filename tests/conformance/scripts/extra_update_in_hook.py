"""A hook makes an update of its own by hand (zero_grad, backward, optimizer.step on a replay batch): legal there."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train
import copy


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(121)
    x, y = torch.randn(24, 6, generator=g), torch.randint(0, 3, (24,), generator=g)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    plain = copy.deepcopy(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    run.track(model=model, optimizer=optimizer)

    def replay(net, opt):
        opt.zero_grad()
        F.cross_entropy(net(x[:6]), y[:6]).backward()
        opt.step()

    run.every(3, lambda run: replay(model, optimizer))
    for a, b in run.batches(TensorDataset(x, y), lane_batch=4, epochs=9):
        run.step(F.cross_entropy(model(a), b))
    reference = torch.optim.Adam(plain.parameters(), lr=1e-2)
    for step in range(1, 10):
        reference.zero_grad()
        F.cross_entropy(plain(x), y).backward()
        reference.step()
        if step % 3 == 0:
            replay(plain, reference)
    for p, q in zip(model.parameters(), plain.parameters()):
        assert torch.allclose(p, q, atol=1e-4), (p - q).abs().max()

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
