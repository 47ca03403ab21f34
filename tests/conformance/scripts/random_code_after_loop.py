"""After the loop: a new random head, numpy and random draws, and a few plain SGD steps by hand with everything a body may not do."""
# expect: same
import random

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from holdfast import train


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(223)
    data = TensorDataset(torch.randn(96, 6, generator=g), torch.randint(0, 3, (96,), generator=g))
    body = nn.Sequential(nn.Linear(6, 8), nn.ReLU())
    head = nn.Linear(8, 3)
    optimizer = torch.optim.Adam([*body.parameters(), *head.parameters()], lr=1e-2)
    run.track(body=body, head=head, optimizer=optimizer)
    for x, y in run.batches(data, lane_batch=4, epochs=2):
        run.step(F.cross_entropy(head(body(x)), y))
    probe = nn.Linear(8, 3)
    with torch.no_grad():
        probe.bias.fill_(random.random() + float(np.random.rand()))
    by_hand = torch.optim.SGD(probe.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(by_hand, 2)
    for x, y in DataLoader(data, batch_size=16, shuffle=True):
        by_hand.zero_grad()
        F.cross_entropy(probe(body(x).detach()), y).backward()
        nn.utils.clip_grad_norm_(probe.parameters(), 1.0)
        by_hand.step()
        schedule.step()

    published_1 = run.publish(body, "body")
    published_2 = run.publish(probe, "probe")
    if run.first:
        print("SHA", published_1.digest)
        print("SHA", published_2.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
