"""BYOL with a state_dict() that leaves the target network out, to keep checkpoints small: a joiner would not get it."""
# expect: same or refused:
# note: a difference shows only when a worker joins late or the job is restarted
import copy

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


class BYOL(nn.Module):
    def __init__(self):
        super().__init__()
        self.online = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
        self.predictor = nn.Linear(4, 4)
        self.target = copy.deepcopy(self.online).requires_grad_(False)

    def state_dict(self, *args, **kwargs):
        return {k: v for k, v in super().state_dict(*args, **kwargs).items() if not k.startswith("target.")}

    def load_state_dict(self, state, strict=True, **kwargs):
        return super().load_state_dict(state, strict=False, **kwargs)


def main(run: train.Run) -> None:
    data = TensorDataset(torch.randn(96, 6, generator=torch.Generator().manual_seed(239)))
    model = BYOL()
    optimizer = torch.optim.Adam([*model.online.parameters(), *model.predictor.parameters()], lr=1e-2)
    run.track(model=model, optimizer=optimizer)

    @torch.no_grad()
    def follow(run):
        for t, o in zip(model.target.parameters(), model.online.parameters()):
            t.lerp_(o, 0.1)

    run.every(1, follow)
    for (x,) in run.batches(data, lane_batch=4, epochs=4):
        p = model.predictor(model.online(x + 0.1 * torch.randn_like(x)))
        z = model.target(x + 0.1 * torch.randn_like(x))
        run.step(2 - 2 * F.cosine_similarity(p, z.detach()).mean())

    published_1 = run.publish(model.online, "online")
    published_2 = run.publish(model.target, "target")
    if run.first:
        print("SHA", published_1.digest)
        print("SHA", published_2.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
