"""Offline DQN: the replay memory is the data set, the target network is copied in a hook every 7 steps."""
# expect: same
import copy

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(214)
    s, a = torch.randn(240, 3, generator=g), torch.randint(0, 2, (240,), generator=g)
    t = s + 0.1 * (2 * a[:, None] - 1)
    memory = TensorDataset(s, a, -t.abs().sum(1), t)
    q = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 2))
    target = copy.deepcopy(q).requires_grad_(False).eval()
    optimizer = torch.optim.RMSprop(q.parameters(), lr=1e-2)
    run.track(q=q, target=target, optimizer=optimizer)
    run.every(7, lambda run: target.load_state_dict(q.state_dict()))
    for s, a, r, t in run.batches(memory, lane_batch=4, epochs=3):
        with torch.no_grad():
            best = q(t).argmax(1, keepdim=True)
            goal = r + 0.9 * target(t).gather(1, best)[:, 0]
        run.step(F.smooth_l1_loss(q(s).gather(1, a[:, None])[:, 0], goal))
    assert run.completed == 30

    published_1 = run.publish(q, "q")
    published_2 = run.publish(target, "target")
    if run.first:
        print("SHA", published_1.digest)
        print("SHA", published_2.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
