"""AutoClip: before_update keeps a history of gradient norms in a tracked buffer and clips by its median."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(77)
    data = TensorDataset(torch.randn(144, 6, generator=g), torch.randint(0, 3, (144,), generator=g))
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    history = nn.Module()
    history.register_buffer("norms", torch.zeros(64))
    history.register_buffer("n", torch.tensor(0))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    run.track(model=model, history=history, optimizer=optimizer)

    @run.before_update
    def autoclip(run):
        norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
        history.norms[history.n] = norm
        history.n += 1
        limit = history.norms[: history.n].median()
        for p in model.parameters():
            p.grad.mul_((limit / norm).clamp(max=1.0))

    for x, y in run.batches(data, lane_batch=4, epochs=3):
        run.step(F.cross_entropy(model(x), y))
    assert int(history.n) == run.completed == 18

    published_1 = run.publish(model, "model")
    published_2 = run.publish(history, "history")
    if run.first:
        print("SHA", published_1.digest)
        print("SHA", published_2.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
