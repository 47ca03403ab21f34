"""Masked language modelling: collate draws the masks at random, as DataCollatorForLanguageModeling does."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from holdfast import train


class Text(Dataset):
    def __len__(self):
        return 72

    def __getitem__(self, i):
        return torch.randint(2, 20, (10,), generator=torch.Generator().manual_seed(i))


def collate(items):
    ids = torch.stack(items)
    labels = ids.clone()
    mask = torch.bernoulli(torch.full(ids.shape, 0.3)).bool()
    mask[:, 0] = True
    labels[~mask] = -100
    ids = ids.masked_fill(mask, 1)
    return ids, labels


def main(run: train.Run) -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
    model = nn.Sequential(nn.Embedding(20, 16), nn.TransformerEncoder(layer, 2), nn.Linear(16, 20))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / 5))
    run.track(model=model, optimizer=optimizer, scheduler=scheduler)
    run.clip(1.0)
    for x, y in run.batches(Text(), lane_batch=3, epochs=3, collate=collate):
        run.step(F.cross_entropy(model(x).flatten(0, 1), y.flatten()))

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
