"""A bidirectional LSTM with dropout over packed sequences of different lengths, padded embedding."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence

from holdfast import train


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(15, 6, padding_idx=0)
        self.rnn = nn.LSTM(6, 8, num_layers=2, dropout=0.2, bidirectional=True, batch_first=True)
        self.out = nn.Linear(16, 2)

    def forward(self, ids, lengths):
        packed = pack_padded_sequence(self.embed(ids), lengths, batch_first=True, enforce_sorted=False)
        _, (h, _) = self.rnn(packed)
        return self.out(torch.cat([h[-2], h[-1]], 1))


def collate(items):
    ids, labels = zip(*items)
    return pad_sequence(ids, batch_first=True), torch.tensor([len(i) for i in ids]), torch.tensor(labels)


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(229)
    data = [(torch.randint(1, 15, (int(torch.randint(2, 9, (), generator=g)),), generator=g), i % 2) for i in range(75)]
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    run.track(model=model, optimizer=optimizer)
    run.clip(1.0)
    for ids, lengths, labels in run.batches(data, lane_batch=4, epochs=3, collate=collate):
        run.step(F.cross_entropy(model(ids, lengths), labels))
    assert (model.embed.weight[0] == 0).all()

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
