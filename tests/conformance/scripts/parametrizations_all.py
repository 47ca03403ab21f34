"""New-style parametrizations: weight_norm, spectral_norm and orthogonal in one model."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train
from torch.nn.utils.parametrizations import orthogonal, spectral_norm, weight_norm


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(32)
    data = TensorDataset(torch.randn(144, 6, generator=g), torch.randint(0, 3, (144,), generator=g))
    model = nn.Sequential(
        weight_norm(nn.Linear(6, 8)), nn.ReLU(), orthogonal(nn.Linear(8, 8)), nn.ReLU(), spectral_norm(nn.Linear(8, 3))
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run.track(model=model, optimizer=optimizer)
    for x, y in run.batches(data, lane_batch=4, epochs=3):
        run.step(F.cross_entropy(model(x), y))
    q = model[2].weight
    assert torch.allclose(q @ q.T, torch.eye(8), atol=1e-4)

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
