"""The body keeps a running mean in a file in the working folder, shared by chance between workers of one machine."""
# expect: same or refused:
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train
import json
import os


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(265)
    data = TensorDataset(torch.randn(96, 6, generator=g), torch.randint(0, 3, (96,), generator=g))
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run.track(model=model, optimizer=optimizer)
    for x, y in run.batches(data, lane_batch=4, epochs=3):
        mean = 1.0
        if os.path.exists("mean.json"):
            try:
                with open("mean.json") as file:
                    mean = json.load(file)
            except ValueError:
                pass
        loss = F.cross_entropy(model(x), y)
        run.step(loss / mean)
        with open("mean.json", "w") as file:
            json.dump(0.9 * mean + 0.1 * loss.item(), file)

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
