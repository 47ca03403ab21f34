"""random_split and sklearn's train_test_split without seeds inside main, where the runner has seeded."""
# expect: same
import numpy as np
import torch
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Subset, TensorDataset, random_split

from holdfast import train


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(25)
    data = TensorDataset(torch.randn(200, 4, generator=g), torch.randint(0, 2, (200,), generator=g))
    kept, _ = random_split(data, [0.9, 0.1])
    rows, _ = train_test_split(np.arange(len(kept)), test_size=0.2)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run.track(model=model, optimizer=optimizer)
    for x, y in run.batches(Subset(kept, rows.tolist()), lane_batch=4, epochs=3):
        run.step(F.cross_entropy(model(x), y))

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
