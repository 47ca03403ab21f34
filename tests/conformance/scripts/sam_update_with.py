"""SAM by the interface: updates=2 and run.update_with, checked beside a plain full-batch SAM loop."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train
import copy


class SAM(torch.optim.Optimizer):
    def __init__(self, params, lr=0.1, rho=0.05):
        super().__init__(params, dict(lr=lr, rho=rho))

    def ps(self):
        return [p for group in self.param_groups for p in group["params"] if p.grad is not None]

    @torch.no_grad()
    def first_step(self):
        norm = torch.stack([p.grad.norm() for p in self.ps()]).norm()
        for p in self.ps():
            e = p.grad * (self.param_groups[0]["rho"] / (norm + 1e-12))
            self.state[p]["e"] = e
            p.add_(e)

    @torch.no_grad()
    def second_step(self):
        for p in self.ps():
            p.sub_(self.state[p]["e"]).sub_(p.grad, alpha=self.param_groups[0]["lr"])

    def step(self, closure=None):
        raise RuntimeError("first_step and second_step, please")


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(70)
    x, y = torch.randn(24, 6, generator=g), torch.randint(0, 3, (24,), generator=g)
    model = nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 3))
    plain = copy.deepcopy(model)
    sam = SAM(model.parameters())
    run.track(model=model, sam=sam)
    run.update_with(lambda run: sam.first_step() if run.update_index == 0 else sam.second_step())
    for batch in run.batches(TensorDataset(x, y), lane_batch=4, epochs=10, updates=2):
        run.step(F.cross_entropy(model(batch.x), batch.y))
    assert run.completed == 20, run.completed
    reference = SAM(plain.parameters())
    for _ in range(10):
        for half in (reference.first_step, reference.second_step):
            reference.zero_grad()
            F.cross_entropy(plain(x), y).backward()
            half()
    for p, q in zip(model.parameters(), plain.parameters()):
        assert torch.allclose(p, q, atol=1e-5), (p - q).abs().max()

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
