"""SAC's temperature: an optimizer over a bare tensor that belongs to no tracked model."""
# expect: refused: track
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(136)
    data = TensorDataset(torch.randn(96, 4, generator=g))
    policy = nn.Linear(4, 3)
    log_alpha = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
    alpha_optimizer = torch.optim.Adam([log_alpha], lr=1e-2)
    run.track(policy=policy, optimizer=optimizer, alpha_optimizer=alpha_optimizer)
    for batch in run.batches(data, lane_batch=4, epochs=2):
        log_p = F.log_softmax(policy(batch.x), 1)
        entropy = -(log_p.exp() * log_p).sum(1).mean()
        run.step(-log_alpha.exp().detach().squeeze() * entropy, (log_alpha * (entropy.detach() - 0.5)).sum())

    published = run.publish(policy)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
