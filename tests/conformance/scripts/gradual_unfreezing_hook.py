"""ULMFiT: a hook thaws one more layer each epoch with add_param_group; checked beside a plain full-batch loop."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train
import copy


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(81)
    x, y = torch.randn(24, 6, generator=g), torch.randint(0, 3, (24,), generator=g)

    def prepare(model):
        model[0].requires_grad_(False)
        model[2].requires_grad_(False)
        return torch.optim.AdamW(model[4].parameters(), lr=2e-2, weight_decay=0.1)

    def thaw(model, optimizer, epoch):
        if epoch in (4, 8):
            layer = model[2 if epoch == 4 else 0]
            layer.requires_grad_(True)
            optimizer.add_param_group({"params": layer.parameters(), "lr": 1e-2})

    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))
    plain = copy.deepcopy(model)
    optimizer = prepare(model)
    run.track(model=model, optimizer=optimizer)
    run.every_epoch(lambda run: thaw(model, optimizer, run.epoch))
    for a, b in run.batches(TensorDataset(x, y), lane_batch=4, epochs=12):
        run.step(F.cross_entropy(model(a), b))
    assert len(optimizer.param_groups) == 3
    reference = prepare(plain)
    for epoch in range(1, 13):
        reference.zero_grad()
        F.cross_entropy(plain(x), y).backward()
        reference.step()
        thaw(plain, reference, epoch)
    for p, q in zip(model.parameters(), plain.parameters()):
        assert torch.allclose(p, q, atol=1e-4), (p - q).abs().max()

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
