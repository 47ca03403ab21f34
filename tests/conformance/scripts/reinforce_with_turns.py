"""REINFORCE on a tiny bandit world with train.turns: every lane plays its own episodes with seeded randomness."""
# expect: same
import random

import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical

from holdfast import train


class World:
    """A walk on a line of seven places; random.random() is the wind, numpy the start."""

    def reset(self):
        self.at, self.t = int(np.random.randint(2, 5)), 0
        return self.at

    def step(self, action):
        self.t += 1
        self.at += (1 if action else -1) * (1 if random.random() < 0.8 else -1)
        done = self.at in (0, 6) or self.t == 15
        return self.at, float(self.at == 6), done


def main(run: train.Run) -> None:
    policy = nn.Sequential(nn.Embedding(7, 8), nn.Tanh(), nn.Linear(8, 2))
    optimizer = torch.optim.Adam(policy.parameters(), lr=2e-2)
    run.track(policy=policy, optimizer=optimizer)
    for _turn in train.turns(run, 12):
        losses = []
        for _ in range(3):
            world, log_probs, total, done = World(), [], 0.0, False
            state = world.reset()
            while not done:
                choice = Categorical(logits=policy(torch.tensor(state)))
                action = choice.sample()
                log_probs.append(choice.log_prob(action))
                state, reward, done = world.step(int(action))
                total += reward
            losses.append(-torch.stack(log_probs).sum() * (total - 0.5))
        run.log("reward", total)
        run.step(torch.stack(losses).mean())
    assert run.completed == 12

    published = run.publish(policy)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
