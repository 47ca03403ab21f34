"""Samples are dicts with strings, numbers and tensors, as from Hugging Face; a lambda tokenises in collate, with loader_workers."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F

from holdfast import train

WORDS = "red green blue small large".split()


def main(run: train.Run) -> None:
    rows = [{"text": f"{WORDS[i % 5]} {WORDS[(i * 3) % 5]}", "label": i % 2, "weight": 1.0 + i % 3} for i in range(96)]
    ids = {w: n for n, w in enumerate(WORDS)}
    collate = lambda items: {  # noqa: E731
        "ids": torch.tensor([[ids[w] for w in r["text"].split()] for r in items]),
        "labels": torch.tensor([r["label"] for r in items]),
        "weights": torch.tensor([r["weight"] for r in items]),
        "texts": [r["text"] for r in items],
    }
    model = nn.Sequential(nn.EmbeddingBag(5, 6), nn.Linear(6, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    run.track(model=model, optimizer=optimizer)
    for batch in run.batches(rows, lane_batch=4, epochs=3, collate=collate, loader_workers=1):
        losses = F.cross_entropy(model(batch["ids"]), batch["labels"], reduction="none")
        assert len(batch["texts"]) == len(losses)
        run.step((losses * batch["weights"]).mean())

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
