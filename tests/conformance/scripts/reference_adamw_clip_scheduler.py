"""AdamW, clipping, no-decay groups and a schedule beside the plain full-batch loop they were ported from."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train
import copy


def setup(model):
    decay = [p for p in model.parameters() if p.dim() > 1]
    rest = [p for p in model.parameters() if p.dim() <= 1]
    groups = [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0, "lr": 5e-3}]
    optimizer = torch.optim.AdamW(groups, lr=1e-2)
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1, (s + 1) / 4) * 0.95**s)


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(213)
    x, y = torch.randn(24, 6, generator=g), torch.randint(0, 3, (24,), generator=g)
    model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3))
    plain = copy.deepcopy(model)
    optimizer, scheduler = setup(model)
    run.track(model=model, optimizer=optimizer, scheduler=scheduler)
    run.clip(0.2)
    for a, b in run.batches(TensorDataset(x, y), lane_batch=4, epochs=20):
        run.step(F.cross_entropy(model(a), b))
    reference, schedule = setup(plain)
    for _ in range(20):
        reference.zero_grad()
        F.cross_entropy(plain(x), y).backward()
        nn.utils.clip_grad_norm_(plain.parameters(), 0.2)
        reference.step()
        schedule.step()
    for p, q in zip(model.parameters(), plain.parameters()):
        assert torch.allclose(p, q, atol=1e-4), (p - q).abs().max()

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
