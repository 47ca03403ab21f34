"""The hashing trick with Python's hash() of strings, which is another one in every process."""
# expect: same or refused:
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from holdfast import train

WORDS = "the cat sat on a mat while dogs ran over green hills and sang songs of old".split()


class Sentences(Dataset):
    def __len__(self):
        return 96

    def __getitem__(self, i):
        words = [WORDS[(i * 7 + k * k) % len(WORDS)] for k in range(6)]
        return torch.tensor([hash(w) % 31 for w in words]), torch.tensor(i % 2)


def main(run: train.Run) -> None:
    model = nn.Sequential(nn.EmbeddingBag(31, 8), nn.Linear(8, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    run.track(model=model, optimizer=optimizer)
    for x, y in run.batches(Sentences(), lane_batch=4, epochs=3):
        run.step(F.cross_entropy(model(x), y))

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
