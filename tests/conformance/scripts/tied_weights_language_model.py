"""A language model whose output layer is the embedding's weight itself: one parameter under two names."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from holdfast import train


class Text(Dataset):
    def __init__(self):
        g = torch.Generator().manual_seed(33)
        self.ids = torch.randint(0, 17, (400,), generator=g)

    def __len__(self):
        return 120

    def __getitem__(self, i):
        return self.ids[i : i + 8], self.ids[i + 1 : i + 9]


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(17, 12)
        self.rnn = nn.GRU(12, 12, batch_first=True)
        self.head = nn.Linear(12, 17, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        return self.head(self.rnn(self.embed(ids))[0])


def main(run: train.Run) -> None:
    model = LM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    run.track(model=model, optimizer=optimizer)
    run.clip(0.5)
    for x, y in run.batches(Text(), lane_batch=4, epochs=3):
        run.step(F.cross_entropy(model(x).flatten(0, 1), y.flatten()))
    assert model.head.weight is model.embed.weight

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
