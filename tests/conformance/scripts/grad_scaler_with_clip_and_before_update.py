"""GradScaler with run.clip and before_update: the hook sees unscaled gradients; checked beside a plain loop without scaling."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train
import copy


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(217)
    x, y = torch.randn(24, 6, generator=g), 3 * torch.randn(24, 1, generator=g)
    model = nn.Linear(6, 1)
    plain = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    run.track(model=model, optimizer=optimizer, scaler=scaler)
    run.clip(0.5)
    run.before_update(lambda run: [p.grad.clamp_(-0.4, 0.4) for p in model.parameters()])
    for a, b in run.batches(TensorDataset(x, y), lane_batch=4, epochs=12):
        run.step(F.mse_loss(model(a), b))
    reference = torch.optim.SGD(plain.parameters(), lr=0.1)
    for _ in range(12):
        reference.zero_grad()
        F.mse_loss(plain(x), y).backward()
        nn.utils.clip_grad_value_(plain.parameters(), 0.4)
        nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
        reference.step()
    assert torch.allclose(model.weight, plain.weight, atol=1e-5), (model.weight - plain.weight).abs().max()

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
