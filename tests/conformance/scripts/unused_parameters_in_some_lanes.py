"""Two experts chosen by the batch's content, one that nobody ever chooses: Adam with weight decay must not touch that one."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Linear(4, 8)
        self.experts = nn.ModuleList(nn.Linear(8, 2) for _ in range(3))

    def forward(self, x):
        h = torch.tanh(self.trunk(x))
        return self.experts[0 if x.sum() > 0 else 1](h)


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(35)
    data = TensorDataset(torch.randn(150, 4, generator=g), torch.randint(0, 2, (150,), generator=g))
    model = Experts()
    never = model.experts[2].weight.detach().clone()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.5)
    run.track(model=model, optimizer=optimizer)
    for x, y in run.batches(data, lane_batch=4, epochs=4):
        run.step(F.cross_entropy(model(x), y))
    assert torch.equal(never, model.experts[2].weight)
    assert not optimizer.state.get(model.experts[2].weight)

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
