"""The old GAN habit: requires_grad of the discriminator is switched off and on in the body."""
# expect: refused: requires_grad
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(84)
    data = TensorDataset(torch.randn(144, 4, generator=g))
    gen, disc = nn.Linear(2, 4), nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    g_opt, d_opt = torch.optim.Adam(gen.parameters()), torch.optim.Adam(disc.parameters())
    run.track(gen=gen, disc=disc, g_opt=g_opt, d_opt=d_opt)
    for batch in run.batches(data, lane_batch=4, epochs=4):
        fake = gen(torch.randn(len(batch.x), 2))
        if run.completed % 2 == 0:
            for p in disc.parameters():
                p.requires_grad_(True)
            run.step(F.softplus(disc(fake.detach())).mean() + F.softplus(-disc(batch.x)).mean(), only=d_opt)
        else:
            for p in disc.parameters():
                p.requires_grad_(False)
            run.step(F.softplus(-disc(fake)).mean(), only=g_opt)

    published_1 = run.publish(gen, "gen")
    published_2 = run.publish(disc, "disc")
    if run.first:
        print("SHA", published_1.digest)
        print("SHA", published_2.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
