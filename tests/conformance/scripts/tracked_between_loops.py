"""A new head and its optimizer are made and tracked between two loops (pretrain, then finetune)."""
# expect: same or refused: track
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(219)
    x, y = torch.randn(120, 6, generator=g), torch.randint(0, 3, (120,), generator=g)
    encoder, decoder = nn.Linear(6, 4), nn.Linear(4, 6)
    first = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=1e-2)
    run.track(encoder=encoder, decoder=decoder, first=first)
    for (a,) in run.batches(TensorDataset(x), lane_batch=4, epochs=2):
        run.step(F.mse_loss(decoder(torch.relu(encoder(a + 0.1 * torch.randn_like(a)))), a))
    head = nn.Linear(4, 3)
    second = torch.optim.SGD([{"params": encoder.parameters(), "lr": 1e-3}, {"params": head.parameters()}], lr=0.1)
    run.track(head=head, second=second)
    for a, b in run.batches(TensorDataset(x, y), lane_batch=4, epochs=3):
        run.step(F.cross_entropy(head(torch.relu(encoder(a))), b), only=second)
    assert run.completed == 25, run.completed

    published_1 = run.publish(encoder, "encoder")
    published_2 = run.publish(decoder, "decoder")
    published_3 = run.publish(head, "head")
    if run.first:
        print("SHA", published_1.digest)
        print("SHA", published_2.digest)
        print("SHA", published_3.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
