"""torch.autocast in bf16 in the body; weights and gradients stay float32."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(215)
    data = TensorDataset(torch.randn(120, 3, 8, 8, generator=g), torch.randint(0, 3, (120,), generator=g))
    model = nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    run.track(model=model, optimizer=optimizer)
    for x, y in run.batches(data, lane_batch=4, epochs=2):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = model(x)
        run.step(F.cross_entropy(out.float(), y))
    assert model[0].weight.dtype == torch.float32

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
