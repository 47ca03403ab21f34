"""Layers in a plain Python list: not registered, so not in the tracked model's state, but in the optimizer."""
# expect: refused: track
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = [nn.Linear(4, 4) for _ in range(2)]
        self.out = nn.Linear(4, 2)

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return self.out(x)


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(138)
    data = TensorDataset(torch.randn(96, 4, generator=g), torch.randint(0, 2, (96,), generator=g))
    model = Net()
    everything = [*model.parameters(), *(p for layer in model.layers for p in layer.parameters())]
    optimizer = torch.optim.SGD(everything, lr=0.1)
    run.track(model=model, optimizer=optimizer)
    for x, y in run.batches(data, lane_batch=4, epochs=2):
        run.step(F.cross_entropy(model(x), y))

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
