"""fused, foreach, amsgrad, maximize, nesterov and a tensor as learning rate."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(236)
    data = TensorDataset(torch.randn(96, 4, generator=g), torch.randn(96, 1, generator=g))
    model = nn.ModuleList(nn.Linear(4, 1) for _ in range(5))
    run.track(
        model=model,
        fused=torch.optim.AdamW(model[0].parameters(), lr=1e-2, fused=True),
        foreach=torch.optim.Adam(model[1].parameters(), lr=1e-2, foreach=True, amsgrad=True),
        maximize=torch.optim.Adam(model[2].parameters(), lr=1e-2, maximize=True),
        nesterov=torch.optim.SGD(model[3].parameters(), lr=1e-2, momentum=0.9, nesterov=True),
        tensor_lr=torch.optim.Adam(model[4].parameters(), lr=torch.tensor(1e-2), foreach=False),
    )
    for x, y in run.batches(data, lane_batch=4, epochs=4):
        losses = [F.mse_loss(m(x), y) for m in model]
        losses[2] = -losses[2]
        run.step(*losses)

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
