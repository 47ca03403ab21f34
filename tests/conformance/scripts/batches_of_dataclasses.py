"""collate makes a dataclass (detectron habit): the body gets it through the batch's data."""
# expect: same or refused: collate
import dataclasses

import torch
from torch import nn
from torch.nn import functional as F

from holdfast import train


@dataclasses.dataclass
class Pair:
    left: torch.Tensor
    right: torch.Tensor


def collate(items):
    return Pair(torch.stack([a for a, _ in items]), torch.stack([b for _, b in items]))


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(168)
    data = [(torch.randn(4, generator=g), torch.randn(4, generator=g)) for _ in range(100)]
    model = nn.Linear(4, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    run.track(model=model, optimizer=optimizer)
    for batch in run.batches(data, lane_batch=4, epochs=3, collate=collate):
        pair = batch.data
        assert isinstance(pair, Pair)
        run.step(F.cosine_embedding_loss(model(pair.left), pair.right, torch.ones(len(pair.left))))

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
