"""Lookahead as a class around another optimizer, with its slow weights in its own state_dict."""
# expect: same
from collections import defaultdict

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


class Lookahead(torch.optim.Optimizer):
    """From a well-known repository, almost as it is."""

    def __init__(self, base, alpha=0.5, k=5):
        self.base = base
        self.defaults = dict(lookahead_alpha=alpha, lookahead_k=k, lookahead_step=0)
        super().__init__(base.param_groups, self.defaults)
        self.param_groups = base.param_groups
        self.state = defaultdict(dict)
        for group in self.param_groups:
            for name, default in self.defaults.items():
                group.setdefault(name, default)

    @torch.no_grad()
    def step(self, closure=None):
        self.base.step()
        for group in self.param_groups:
            group["lookahead_step"] += 1
            if group["lookahead_step"] % group["lookahead_k"] == 0:
                for p in group["params"]:
                    if p.grad is None:
                        continue
                    state = self.state[p]
                    if "slow" not in state:
                        state["slow"] = p.detach().clone()
                    slow = state["slow"]
                    slow.add_(p - slow, alpha=group["lookahead_alpha"])
                    p.copy_(slow)

    def state_dict(self):
        return {"base": self.base.state_dict(), "own": super().state_dict()}

    def load_state_dict(self, state):
        self.base.load_state_dict(state["base"])
        super().load_state_dict(state["own"])
        self.param_groups = self.base.param_groups


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(8)
    data = TensorDataset(torch.randn(192, 6, generator=g), torch.randint(0, 3, (192,), generator=g))
    model = nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 3))
    optimizer = Lookahead(torch.optim.Adam(model.parameters(), lr=1e-2))
    run.track(model=model, optimizer=optimizer)
    for x, y in run.batches(data, lane_batch=4, epochs=4):
        run.step(F.cross_entropy(model(x), y))
    assert optimizer.param_groups[0]["lookahead_step"] == run.completed == 32

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
