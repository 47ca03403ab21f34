"""Sentences of different lengths with train.LengthBuckets and a padding collate; every sentence counts once an epoch."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from holdfast import train


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(12, 8, padding_idx=0)
        self.out = nn.Linear(8, 2)

    def forward(self, ids):
        return self.out(self.embed(ids).sum(1) / (ids > 0).sum(1, keepdim=True))


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(156)
    lengths = torch.randint(2, 20, (130,), generator=g).tolist()
    data = [(torch.randint(1, 12, (n,), generator=g), i % 2) for i, n in enumerate(lengths)]

    def collate(items):
        return pad_sequence([a for a, _ in items], batch_first=True), torch.tensor([b for _, b in items])

    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    run.track(model=model, optimizer=optimizer)
    buckets = train.LengthBuckets(lengths, buckets=4, lane_batch=4)
    for x, y in run.batches(data, epochs=3, batch_sampler=buckets, collate=collate):
        run.step(F.cross_entropy(model(x), y))
    assert (model.embed.weight[0] == 0).all()

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
