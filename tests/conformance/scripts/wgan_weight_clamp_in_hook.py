"""WGAN: three critic updates for one of the generator (updates=4), and weights clamped in a hook."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(68)
    data = TensorDataset(torch.randn(96, 4, generator=g))
    gen, critic = nn.Linear(2, 4), nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    g_opt = torch.optim.RMSprop(gen.parameters(), lr=5e-3)
    c_opt = torch.optim.RMSprop(critic.parameters(), lr=5e-3)
    run.track(gen=gen, critic=critic, g_opt=g_opt, c_opt=c_opt)

    def clamp(run):
        for p in critic.parameters():
            p.data.clamp_(-0.05, 0.05)

    run.every(1, clamp)
    for batch in run.batches(data, lane_batch=4, epochs=3, updates=4):
        fake = gen(torch.randn(len(batch.x), 2))
        if batch.update < 3:
            run.step(critic(fake.detach()).mean() - critic(batch.x).mean(), only=c_opt)
        else:
            run.step(-critic(fake).mean(), only=g_opt)
    assert run.completed == 48
    assert max(p.abs().max() for p in critic.parameters()) <= 0.05

    published_1 = run.publish(gen, "gen")
    published_2 = run.publish(critic, "critic")
    if run.first:
        print("SHA", published_1.digest)
        print("SHA", published_2.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
