"""Activation checkpointing, both kinds, over dropout: the second forward pass must draw the same masks."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train
from torch.utils.checkpoint import checkpoint, checkpoint_sequential


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(64)
    data = TensorDataset(torch.randn(144, 8, generator=g), torch.randint(0, 3, (144,), generator=g))
    blocks = nn.Sequential(*[nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Dropout(0.3)) for _ in range(4)])
    side = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.3))
    head = nn.Linear(8, 3)
    model = nn.ModuleDict({"blocks": blocks, "side": side, "head": head})
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    run.track(model=model, optimizer=optimizer)
    for x, y in run.batches(data, lane_batch=4, epochs=3):
        x = x.requires_grad_()
        h = checkpoint_sequential(blocks, 2, x, use_reentrant=False) + checkpoint(side, x, use_reentrant=True)
        run.step(F.cross_entropy(head(h), y))

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
