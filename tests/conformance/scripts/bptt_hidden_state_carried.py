"""Truncated backpropagation: the hidden state of the last batch is carried into the next one in a local variable."""
# expect: same or refused:
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from holdfast import train


class Windows(Dataset):
    def __init__(self):
        self.ids = torch.randint(0, 11, (96 * 5 + 1,), generator=torch.Generator().manual_seed(205))

    def __len__(self):
        return 96

    def __getitem__(self, i):
        return self.ids[5 * i : 5 * i + 5], self.ids[5 * i + 1 : 5 * i + 6]


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.rnn, self.out = nn.Embedding(11, 8), nn.LSTM(8, 8, batch_first=True), nn.Linear(8, 11)

    def forward(self, ids, hidden=None):
        h, hidden = self.rnn(self.embed(ids), hidden)
        return self.out(h), hidden


def main(run: train.Run) -> None:
    model = LM()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    run.track(model=model, optimizer=optimizer)
    run.clip(0.25)
    hidden = None
    for x, y in run.batches(Windows(), lane_batch=4, epochs=3, shuffle=False):
        if hidden is not None:
            hidden = tuple(h.detach() for h in hidden)
        out, hidden = model(x, hidden)
        run.step(F.cross_entropy(out.flatten(0, 1), y.flatten()))

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
