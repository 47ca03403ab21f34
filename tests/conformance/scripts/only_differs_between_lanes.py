"""Lanes of one step name different optimizers with only=: even lanes the body's, odd lanes the head's."""
# expect: same or refused: only
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(233)
    data = TensorDataset(torch.randn(96, 6, generator=g), torch.randn(96, 1, generator=g))
    body, head = nn.Linear(6, 4), nn.Linear(4, 1)
    b_opt, h_opt = torch.optim.Adam(body.parameters(), lr=1e-2), torch.optim.SGD(head.parameters(), lr=0.1)
    run.track(body=body, head=head, b_opt=b_opt, h_opt=h_opt)
    for batch in run.batches(data, lane_batch=4, epochs=3):
        loss = F.mse_loss(head(torch.tanh(body(batch.x))), batch.y)
        run.step(loss, only=b_opt if batch.lane % 2 == 0 else h_opt)

    published_1 = run.publish(body, "body")
    published_2 = run.publish(head, "head")
    if run.first:
        print("SHA", published_1.digest)
        print("SHA", published_2.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
