"""An instance-discrimination memory bank: forward writes the rows of its own samples into a buffer."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from holdfast import train


class Indexed(Dataset):
    def __init__(self):
        self.x = torch.randn(96, 6, generator=torch.Generator().manual_seed(49))

    def __len__(self):
        return 96

    def __getitem__(self, i):
        return self.x[i], i


class Bank(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 4)
        self.register_buffer("bank", F.normalize(torch.randn(96, 4), dim=1))

    def forward(self, x, index):
        z = F.normalize(self.fc(x), dim=1)
        loss = F.cross_entropy(z @ self.bank.clone().T / 0.1, index)
        with torch.no_grad():
            self.bank[index] = F.normalize(0.5 * self.bank[index] + 0.5 * z, dim=1)
        return loss


def main(run: train.Run) -> None:
    model = Bank()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    run.track(model=model, optimizer=optimizer)
    for x, index in run.batches(Indexed(), lane_batch=4, epochs=5):
        run.step(model(x, index))

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
