"""With updates=2 the first round leaves something (the discriminator's features) in a Python variable for the second."""
# expect: same or refused:
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(72)
    data = TensorDataset(torch.randn(144, 6, generator=g), torch.randint(0, 3, (144,), generator=g))
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run.track(model=model, optimizer=optimizer)
    kept = None
    for batch in run.batches(data, lane_batch=4, epochs=2, updates=2):
        out = model(batch.x)
        if batch.update == 0:
            kept = out.detach()
            run.step(F.cross_entropy(out, batch.y))
        else:  # of this worker's last lane, not of this one
            run.step(F.cross_entropy(out, batch.y) + F.mse_loss(out, kept))

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
