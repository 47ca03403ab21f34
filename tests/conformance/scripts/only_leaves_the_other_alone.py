"""only= with losses that reach both models: the other's weights, moments and gradients must stay untouched; checked."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train
import copy


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(232)
    x, y = torch.randn(24, 6, generator=g), torch.randn(24, 1, generator=g)
    body, head = nn.Linear(6, 4), nn.Linear(4, 1)
    plain_body, plain_head = copy.deepcopy(body), copy.deepcopy(head)
    b_opt, h_opt = torch.optim.Adam(body.parameters(), lr=1e-2), torch.optim.SGD(head.parameters(), lr=0.1, momentum=0.9)
    run.track(body=body, head=head, b_opt=b_opt, h_opt=h_opt)
    for a, b in run.batches(TensorDataset(x, y), lane_batch=4, epochs=12):
        run.step(F.mse_loss(head(torch.tanh(body(a))), b), only=b_opt if run.completed % 3 == 2 else h_opt)
    one = torch.optim.Adam(plain_body.parameters(), lr=1e-2)
    two = torch.optim.SGD(plain_head.parameters(), lr=0.1, momentum=0.9)
    for step in range(12):
        one.zero_grad()
        two.zero_grad()
        F.mse_loss(plain_head(torch.tanh(plain_body(x))), y).backward()
        (one if step % 3 == 2 else two).step()
    assert torch.allclose(body.weight, plain_body.weight, atol=1e-4), (body.weight - plain_body.weight).abs().max()
    assert torch.allclose(head.weight, plain_head.weight, atol=1e-5), (head.weight - plain_head.weight).abs().max()

    published_1 = run.publish(body, "body")
    published_2 = run.publish(head, "head")
    if run.first:
        print("SHA", published_1.digest)
        print("SHA", published_2.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
