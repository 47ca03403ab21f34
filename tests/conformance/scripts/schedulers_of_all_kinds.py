"""SequentialLR (warm-up then cosine) every step, MultiStepLR every epoch, and their rates checked beside a plain loop."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, MultiStepLR, SequentialLR


def schedulers(a, b):
    warm = LinearLR(a, start_factor=0.1, total_iters=5)
    return SequentialLR(a, [warm, CosineAnnealingLR(a, 15)], milestones=[5]), MultiStepLR(b, [1, 3], gamma=0.5)


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(180)
    data = TensorDataset(torch.randn(110, 6, generator=g), torch.randint(0, 3, (110,), generator=g))
    body, head = nn.Linear(6, 8), nn.Linear(8, 3)
    body_opt, head_opt = torch.optim.SGD(body.parameters(), lr=0.1), torch.optim.AdamW(head.parameters(), lr=0.01)
    every_step, every_epoch = schedulers(body_opt, head_opt)
    run.track(body=body, head=head, body_opt=body_opt, head_opt=head_opt, every_step=every_step)
    run.track(every_epoch=every_epoch, every="epoch")
    for x, y in run.batches(data, lane_batch=4, epochs=4):
        run.step(F.cross_entropy(head(torch.relu(body(x))), y))
    assert run.completed == 20, run.completed
    a, b = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1), torch.optim.AdamW([nn.Parameter(torch.zeros(1))], lr=0.01)
    plain_step, plain_epoch = schedulers(a, b)
    for _ in range(4):
        for _ in range(5):
            a.step()
            b.step()
            plain_step.step()
        plain_epoch.step()
    assert body_opt.param_groups[0]["lr"] == a.param_groups[0]["lr"], (body_opt.param_groups[0]["lr"], a.param_groups[0]["lr"])
    assert head_opt.param_groups[0]["lr"] == b.param_groups[0]["lr"], (head_opt.param_groups[0]["lr"], b.param_groups[0]["lr"])

    published_1 = run.publish(body, "body")
    published_2 = run.publish(head, "head")
    if run.first:
        print("SHA", published_1.digest)
        print("SHA", published_2.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
