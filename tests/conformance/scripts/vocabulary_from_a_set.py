"""The vocabulary is enumerate(set(words)): its order depends on the process's hash seed."""
# expect: same or refused:
import torch
from torch import nn
from torch.nn import functional as F

from holdfast import train

TEXT = "we hold these truths to be self evident that all models are created equal " * 6


def main(run: train.Run) -> None:
    words = TEXT.split()
    vocabulary = {w: i for i, w in enumerate(set(words))}
    ids = [vocabulary[w] for w in words]
    pairs = [(torch.tensor(a), torch.tensor(b)) for a, b in zip(ids, ids[1:])]
    model = nn.Sequential(nn.Embedding(len(vocabulary), 8), nn.Linear(8, len(vocabulary)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    run.track(model=model, optimizer=optimizer)
    for x, y in run.batches(pairs, lane_batch=3, epochs=3):
        run.step(F.cross_entropy(model(x), y))

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
