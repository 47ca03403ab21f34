"""CyclicLR with momentum cycling, and a ChainedScheduler of two, on two optimizers."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train
from torch.optim.lr_scheduler import ChainedScheduler, ConstantLR, CyclicLR, ExponentialLR


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(183)
    data = TensorDataset(torch.randn(120, 6, generator=g), torch.randint(0, 3, (120,), generator=g))
    body, head = nn.Linear(6, 8), nn.Linear(8, 3)
    first = torch.optim.SGD(body.parameters(), lr=0.01, momentum=0.9)
    second = torch.optim.RMSprop(head.parameters(), lr=0.01)
    cyclic = CyclicLR(first, base_lr=0.01, max_lr=0.1, step_size_up=3, mode="triangular2")
    chained = ChainedScheduler([ConstantLR(second, 0.1, 4), ExponentialLR(second, 0.95)])
    run.track(body=body, head=head, first=first, second=second, cyclic=cyclic, chained=chained)
    for x, y in run.batches(data, lane_batch=4, epochs=4):
        run.step(F.cross_entropy(head(torch.tanh(body(x))), y))

    published_1 = run.publish(body, "body")
    published_2 = run.publish(head, "head")
    if run.first:
        print("SHA", published_1.digest)
        print("SHA", published_2.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
