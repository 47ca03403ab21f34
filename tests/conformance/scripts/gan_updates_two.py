"""A GAN as in the interface: every batch twice, first the discriminator's update, then the generator's."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(66)
    data = TensorDataset(torch.randn(96, 4, generator=g) * 0.5 + 1)
    gen = nn.Sequential(nn.Linear(3, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))
    disc = nn.Sequential(nn.Linear(4, 16), nn.LeakyReLU(0.2), nn.Dropout(0.2), nn.Linear(16, 1))
    g_optimizer = torch.optim.Adam(gen.parameters(), lr=2e-3, betas=(0.5, 0.999))
    d_optimizer = torch.optim.Adam(disc.parameters(), lr=2e-3, betas=(0.5, 0.999))
    run.track(gen=gen, disc=disc, g_optimizer=g_optimizer, d_optimizer=d_optimizer)
    for batch in run.batches(data, lane_batch=4, epochs=3, updates=2):
        real = batch.x
        fake = gen(torch.randn(len(real), 3))
        ones, zeros = torch.ones(len(real), 1), torch.zeros(len(real), 1)
        if batch.update == 0:
            loss = F.binary_cross_entropy_with_logits(disc(real), ones)
            loss = loss + F.binary_cross_entropy_with_logits(disc(fake.detach()), zeros)
            run.step(loss, only=d_optimizer)
        else:
            run.step(F.binary_cross_entropy_with_logits(disc(fake), ones), only=g_optimizer)
    assert run.completed == 24, run.completed
    assert int(g_optimizer.state[gen[0].weight]["step"]) == 12
    assert int(d_optimizer.state[disc[0].weight]["step"]) == 12

    published_1 = run.publish(gen, "gen")
    published_2 = run.publish(disc, "disc")
    if run.first:
        print("SHA", published_1.digest)
        print("SHA", published_2.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
