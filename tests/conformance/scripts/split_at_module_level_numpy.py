"""The train/validation split is drawn with unseeded numpy when the module is imported, before anybody seeds."""
# expect: same or refused:
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Subset, TensorDataset

from holdfast import train

g = torch.Generator().manual_seed(24)
DATA = TensorDataset(torch.randn(200, 4, generator=g), torch.randint(0, 2, (200,), generator=g))
ORDER = np.random.permutation(200).tolist()
TRAIN, VALID = Subset(DATA, ORDER[:160]), Subset(DATA, ORDER[160:])


def main(run: train.Run) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run.track(model=model, optimizer=optimizer)
    for x, y in run.batches(TRAIN, lane_batch=4, epochs=3):
        run.step(F.cross_entropy(model(x), y))

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
