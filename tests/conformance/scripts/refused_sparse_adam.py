"""torch.optim.SparseAdam with a sparse embedding."""
# expect: refused: Sparse
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(122)
    data = TensorDataset(torch.randint(0, 20, (96,), generator=g), torch.randn(96, 4, generator=g))
    model = nn.Embedding(20, 4, sparse=True)
    optimizer = torch.optim.SparseAdam(model.parameters(), lr=0.1)
    run.track(model=model, optimizer=optimizer)
    for x, y in run.batches(data, lane_batch=4, epochs=1):
        run.step(F.mse_loss(model(x), y))

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
