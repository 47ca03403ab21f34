"""DQN with a replay memory in a Python deque that the body fills: it remembers this worker's lanes only."""
# expect: same or refused:
import random
from collections import deque

import torch
from torch import nn
from torch.nn import functional as F

from holdfast import train


def main(run: train.Run) -> None:
    q = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 2))
    target = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 2)).requires_grad_(False)
    target.load_state_dict(q.state_dict())
    optimizer = torch.optim.Adam(q.parameters(), lr=1e-2)
    run.track(q=q, target=target, optimizer=optimizer)
    run.every(5, lambda run: target.load_state_dict(q.state_dict()))
    memory = deque(maxlen=200)
    for _turn in train.turns(run, 20):
        state = torch.randn(3)
        for _ in range(4):
            action = random.randrange(2) if random.random() < 0.3 else int(q(state).argmax())
            after = state + (0.1 if action else -0.1)
            memory.append((state, action, -after.abs().sum(), after))
            state = after
        s, a, r, t = zip(*random.sample(list(memory), 4))
        s, a, r, t = torch.stack(s), torch.tensor(a), torch.stack(r), torch.stack(t)
        with torch.no_grad():
            goal = r + 0.9 * target(t).max(1).values
        run.step(F.smooth_l1_loss(q(s).gather(1, a[:, None])[:, 0], goal))

    published_1 = run.publish(q, "q")
    published_2 = run.publish(target, "target")
    if run.first:
        print("SHA", published_1.digest)
        print("SHA", published_2.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
