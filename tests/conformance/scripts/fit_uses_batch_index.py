"""A Lightning module whose training_step(self, batch, batch_idx) uses the index for a warm-up."""
# expect: same or refused: training_step
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


class Lit(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(6, 3)

    def training_step(self, batch, batch_idx):
        x, y = batch
        return F.cross_entropy(self.net(x), y, label_smoothing=0.3 if batch_idx < 10 else 0.0)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(248)
    data = TensorDataset(torch.randn(144, 6, generator=g), torch.randint(0, 3, (144,), generator=g))
    model = Lit()
    train.fit(run, model, data, lane_batch=4, epochs=3)

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
