"""WGAN-GP's critic: torch.autograd.grad with create_graph inside the body (double backward), batches interpolated at random."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(65)
    data = TensorDataset(torch.randn(144, 4, generator=g) + 2)
    critic = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.5, 0.9))
    run.track(critic=critic, optimizer=optimizer)
    for (real,) in run.batches(data, lane_batch=4, epochs=3):
        fake = torch.randn_like(real)
        mix = torch.rand(len(real), 1)
        between = (mix * real + (1 - mix) * fake).requires_grad_(True)
        (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
        penalty = ((slope.norm(2, dim=1) - 1) ** 2).mean()
        run.step(critic(fake).mean() - critic(real).mean() + 10 * penalty)

    published = run.publish(critic)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
