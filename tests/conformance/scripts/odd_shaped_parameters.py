"""Parameters of zero dimensions, of no elements, in ParameterList and ParameterDict, transposed and channels-last."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.empty = nn.Parameter(torch.zeros(0, 3))
        self.many = nn.ParameterList([torch.randn(2, 2) for _ in range(3)])
        self.named = nn.ParameterDict({"shift": torch.randn(1), "turn": torch.randn(4, 6).t()})
        self.conv = nn.Conv2d(2, 4, 3).to(memory_format=torch.channels_last)

    def forward(self, x):
        h = self.conv(x).flatten(1)
        h = h @ self.named["turn"].t() if h.shape[1] == 6 else h[:, :6] @ self.named["turn"]
        h = h.view(-1, 2, 2)
        for w in self.many:
            h = torch.tanh(h @ w)
        return h.sum((1, 2)) * self.scale + self.named["shift"] + self.empty.sum()


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(60)
    data = TensorDataset(torch.randn(144, 2, 4, 4, generator=g), torch.randn(144, generator=g))
    model = Odd()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    run.track(model=model, optimizer=optimizer)
    for x, y in run.batches(data, lane_batch=4, epochs=3):
        run.step(F.mse_loss(model(x.contiguous(memory_format=torch.channels_last)), y))

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
