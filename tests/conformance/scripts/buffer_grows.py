"""A memory of embeddings as a buffer that grows with torch.cat in every forward pass: its shape changes while training."""
# expect: same or refused: shape
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


class Memory(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.register_buffer("bank", torch.zeros(0, 4))

    def forward(self, x):
        z = F.normalize(self.fc(x), dim=1)
        penalty = (z @ self.bank.T).pow(2).mean() if len(self.bank) else z.sum() * 0
        if self.training:
            self.bank = torch.cat([self.bank, z.detach()])[-64:]
        return penalty - (z * x).sum(1).mean()


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(38)
    data = TensorDataset(torch.randn(144, 4, generator=g))
    model = Memory()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run.track(model=model, optimizer=optimizer)
    for batch in run.batches(data, lane_batch=4, epochs=4):
        run.step(model(batch.x))
    assert model.bank.shape == (64, 4), model.bank.shape

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
