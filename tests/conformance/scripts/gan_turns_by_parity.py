"""A GAN that takes turns by run.completed % 2 with only=, the way that needs no further interface."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(67)
    data = TensorDataset(torch.randn(144, 4, generator=g) * 0.5 + 1)
    gen = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 4))
    disc = nn.Sequential(nn.Linear(4, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
    g_opt, d_opt = torch.optim.Adam(gen.parameters(), lr=2e-3), torch.optim.AdamW(disc.parameters(), lr=2e-3)
    run.track(gen=gen, disc=disc, g_opt=g_opt, d_opt=d_opt)
    for (real,) in run.batches(data, lane_batch=4, epochs=4):
        fake = gen(torch.randn(len(real), 3))
        if run.completed % 2 == 0:
            run.step(F.softplus(-disc(real)).mean(), F.softplus(disc(fake.detach())).mean(), only=d_opt)
        else:
            run.step(F.softplus(-disc(fake)).mean(), only=g_opt)
    assert int(g_opt.state[gen[0].weight]["step"]) == 12
    assert int(d_opt.state[disc[0].weight]["step"]) == 12

    published_1 = run.publish(gen, "gen")
    published_2 = run.publish(disc, "disc")
    if run.first:
        print("SHA", published_1.digest)
        print("SHA", published_2.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
