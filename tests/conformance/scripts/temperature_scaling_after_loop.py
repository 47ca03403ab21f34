"""Calibration after the loop: LBFGS with a closure on a held-out set, in plain PyTorch; LBFGS is refused only as a tracked one."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(224)
    data = TensorDataset(torch.randn(96, 6, generator=g), torch.randint(0, 3, (96,), generator=g))
    vx, vy = torch.randn(48, 6, generator=g), torch.randint(0, 3, (48,), generator=g)
    model = nn.Linear(6, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-2)
    run.track(model=model, optimizer=optimizer)
    for x, y in run.batches(data, lane_batch=4, epochs=3):
        run.step(F.cross_entropy(model(x), y))
    calibrated = nn.Module()
    calibrated.temperature = nn.Parameter(torch.ones(1))
    logits = model(vx).detach()
    lbfgs = torch.optim.LBFGS(calibrated.parameters(), lr=0.1, max_iter=20)

    def closure():
        lbfgs.zero_grad()
        loss = F.cross_entropy(logits / calibrated.temperature, vy)
        loss.backward()
        return loss

    lbfgs.step(closure)
    assert calibrated.temperature.item() != 1.0

    published_1 = run.publish(model, "model")
    published_2 = run.publish(calibrated, "calibrated")
    if run.first:
        print("SHA", published_1.digest)
        print("SHA", published_2.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
