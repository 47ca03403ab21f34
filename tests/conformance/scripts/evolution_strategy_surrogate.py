"""Evolution strategies: each lane tries its own antithetic noise and gives the estimate through a surrogate loss."""
# expect: same
import torch
from torch import nn

from holdfast import train


def reward(theta):
    return -((theta - torch.linspace(-1, 1, len(theta))) ** 2).sum().sign() * (theta**2).sum().sqrt() - theta.abs().max()


def main(run: train.Run) -> None:
    model = nn.Linear(5, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-2)
    run.track(model=model, optimizer=optimizer)
    for _turn in train.turns(run, 15):
        theta = torch.nn.utils.parameters_to_vector(model.parameters())
        with torch.no_grad():
            noise = torch.randn(4, len(theta))
            up = torch.stack([reward(theta + 0.1 * n) for n in noise])
            down = torch.stack([reward(theta - 0.1 * n) for n in noise])
            estimate = ((up - down)[:, None] * noise).mean(0) / 0.2
        run.step(-(theta * estimate).sum())

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
