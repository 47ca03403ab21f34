"""SimSiam: stop-gradient, two views, a predictor; and a parameter that is only ever used detached."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


class SimSiam(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))
        self.predictor = nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, a, b):
        za, zb = self.encoder(a) * self.scale.detach(), self.encoder(b) * self.scale.detach()
        pa, pb = self.predictor(za), self.predictor(zb)
        return -(F.cosine_similarity(pa, zb.detach()).mean() + F.cosine_similarity(pb, za.detach()).mean()) / 2


def main(run: train.Run) -> None:
    data = TensorDataset(torch.randn(96, 6, generator=torch.Generator().manual_seed(253)))
    model = SimSiam()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.5)
    run.track(model=model, optimizer=optimizer)
    for (x,) in run.batches(data, lane_batch=4, epochs=4):
        run.step(model(x + 0.1 * torch.randn_like(x), x + 0.1 * torch.randn_like(x)))
    assert model.scale.item() == 2.0

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
