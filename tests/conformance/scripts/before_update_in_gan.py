"""before_update with updates=2 and only=: the hook must run once an update and never let the other side's old gradients be used."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(306)
    data = TensorDataset(torch.randn(96, 4, generator=g))
    gen, disc = nn.Linear(2, 4), nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    count = nn.Module()
    count.register_buffer("calls", torch.tensor(0))
    g_opt, d_opt = torch.optim.SGD(gen.parameters(), lr=0.1), torch.optim.Adam(disc.parameters(), lr=1e-2)
    run.track(gen=gen, disc=disc, count=count, g_opt=g_opt, d_opt=d_opt)

    @run.before_update
    def noise(run):
        count.calls += 1
        for p in [*gen.parameters(), *disc.parameters()]:
            if p.grad is not None:
                p.grad.add_(0.01 * torch.randn_like(p))

    for batch in run.batches(data, lane_batch=4, epochs=3, updates=2):
        fake = gen(torch.randn(len(batch.x), 2))
        if batch.update == 0:
            run.step(F.softplus(-disc(batch.x)).mean() + F.softplus(disc(fake.detach())).mean(), only=d_opt)
        else:
            run.step(F.softplus(-disc(fake)).mean(), only=g_opt)
    assert int(count.calls) == run.completed == 24, (int(count.calls), run.completed)
    assert int(d_opt.state[disc[0].weight]["step"]) == 12

    published_1 = run.publish(gen, "gen")
    published_2 = run.publish(disc, "disc")
    if run.first:
        print("SHA", published_1.digest)
        print("SHA", published_2.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
