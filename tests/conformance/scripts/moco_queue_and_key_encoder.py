"""MoCo: a queue of keys and its pointer are buffers, a key encoder follows in a hook, InfoNCE over the queue."""
# expect: same
import copy

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


class MoCo(nn.Module):
    def __init__(self, dim=6, K=48):
        super().__init__()
        self.query = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, dim))
        self.key = copy.deepcopy(self.query).requires_grad_(False)
        self.register_buffer("queue", F.normalize(torch.randn(dim, K), dim=0))
        self.register_buffer("queue_ptr", torch.zeros(1, dtype=torch.long))

    def forward(self, a, b):
        q = F.normalize(self.query(a), dim=1)
        with torch.no_grad():
            k = F.normalize(self.key(b), dim=1)
        logits = torch.cat([(q * k).sum(1, keepdim=True), q @ self.queue.clone().detach()], 1) / 0.2
        loss = F.cross_entropy(logits, torch.zeros(len(a), dtype=torch.long))
        ptr = int(self.queue_ptr)
        self.queue[:, ptr : ptr + len(k)] = k.T
        self.queue_ptr[0] = (ptr + len(k)) % self.queue.shape[1]
        return loss


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(48)
    data = TensorDataset(torch.randn(144, 8, generator=g))
    model = MoCo()
    optimizer = torch.optim.SGD(model.query.parameters(), lr=0.05, momentum=0.9)
    run.track(model=model, optimizer=optimizer)

    @torch.no_grad()
    def follow(run):
        for k, q in zip(model.key.parameters(), model.query.parameters()):
            k.mul_(0.9).add_(q, alpha=0.1)

    run.every(1, follow)
    for (x,) in run.batches(data, lane_batch=4, epochs=4):
        run.step(model(x + 0.1 * torch.randn_like(x), x + 0.1 * torch.randn_like(x)))
    assert int(model.queue_ptr) == (24 * 4) % 48

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
