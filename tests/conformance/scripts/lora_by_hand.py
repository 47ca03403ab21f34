"""LoRA by hand: frozen base weights, low-rank factors trained, merged after the loop."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


class LoRA(nn.Module):
    def __init__(self, base, rank=2):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(rank, base.in_features) * 0.1)
        self.b = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x):
        return self.base(x) + F.linear(F.linear(F.dropout(x, 0.1, self.training), self.a), self.b)

    def merged(self):
        out = nn.Linear(self.base.in_features, self.base.out_features)
        with torch.no_grad():
            out.weight.copy_(self.base.weight + self.b @ self.a)
            out.bias.copy_(self.base.bias)
        return out


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(226)
    data = TensorDataset(torch.randn(96, 6, generator=g), torch.randint(0, 3, (96,), generator=g))
    model = nn.Sequential(LoRA(nn.Linear(6, 8)), nn.ReLU(), LoRA(nn.Linear(8, 3)))
    base = model[0].base.weight.clone()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    run.track(model=model, optimizer=optimizer)
    for x, y in run.batches(data, lane_batch=4, epochs=4):
        run.step(F.cross_entropy(model(x), y))
    assert torch.equal(base, model[0].base.weight)
    merged = nn.Sequential(model[0].merged(), nn.ReLU(), model[2].merged())

    published_1 = run.publish(model, "model")
    published_2 = run.publish(merged, "merged")
    if run.first:
        print("SHA", published_1.digest)
        print("SHA", published_2.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
