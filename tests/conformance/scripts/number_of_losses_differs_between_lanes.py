"""Some lanes give run.step two losses, others one (an auxiliary loss where there are labels)."""
# expect: same or refused: loss
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(234)
    data = TensorDataset(torch.randn(144, 6, generator=g), torch.randint(-2, 3, (144,), generator=g))
    body, head, back = nn.Linear(6, 4), nn.Linear(4, 3), nn.Linear(4, 6)
    model = nn.ModuleList([body, head, back])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    run.track(model=model, optimizer=optimizer)
    for x, y in run.batches(data, lane_batch=3, epochs=3):
        h = torch.tanh(body(x))
        losses = [F.mse_loss(back(h), x)]
        if (y >= 0).all():
            losses.append(F.cross_entropy(head(h), y))
        run.step(*losses)

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
