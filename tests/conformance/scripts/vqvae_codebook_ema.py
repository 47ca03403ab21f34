"""A VQ-VAE whose codebook is made of buffers, moved by EMA inside forward, with straight-through gradients."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


class Quantizer(nn.Module):
    def __init__(self, codes=12, width=4):
        super().__init__()
        embedding = torch.randn(codes, width)
        self.register_buffer("embedding", embedding)
        self.register_buffer("size", torch.zeros(codes))
        self.register_buffer("total", embedding.clone())

    def forward(self, z):
        index = torch.cdist(z, self.embedding).argmin(1)
        if self.training:
            hot = F.one_hot(index, len(self.embedding)).float()
            self.size.mul_(0.9).add_(hot.sum(0), alpha=0.1)
            self.total.mul_(0.9).add_(hot.T @ z.detach(), alpha=0.1)
            n = self.size.sum()
            size = (self.size + 1e-5) / (n + len(self.size) * 1e-5) * n
            self.embedding.copy_(self.total / size[:, None])
        q = self.embedding[index]
        return z + (q - z).detach(), F.mse_loss(z, q.detach())


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(47)
    data = TensorDataset(torch.randn(144, 6, generator=g))
    model = nn.ModuleDict({"encoder": nn.Linear(6, 4), "quantizer": Quantizer(), "decoder": nn.Linear(4, 6)})
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    run.track(model=model, optimizer=optimizer)
    for batch in run.batches(data, lane_batch=4, epochs=4):
        q, commitment = model["quantizer"](model["encoder"](batch.x))
        run.step(F.mse_loss(model["decoder"](q), batch.x), 0.25 * commitment)

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
