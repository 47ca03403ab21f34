"""run.evaluate's means are the plain means over all samples, with a ragged validation set and more than one number."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(185)
    data = TensorDataset(torch.randn(96, 6, generator=g), torch.randint(0, 3, (96,), generator=g))
    vx, vy = torch.randn(53, 6, generator=g), torch.randint(0, 3, (53,), generator=g)
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run.track(model=model, optimizer=optimizer)

    def check(run):
        def sums(batch):
            out = model(batch.x)
            return {"hits": (out.argmax(1) == batch.y).sum(), "loss": F.cross_entropy(out, batch.y, reduction="sum")}

        with torch.no_grad():
            found = run.evaluate(sums, TensorDataset(vx, vy))
            out = model(vx)
        assert abs(found["hits"] - (out.argmax(1) == vy).float().mean().item()) < 1e-6, found
        assert abs(found["loss"] - F.cross_entropy(out, vy).item()) < 1e-5, found
        optimizer.param_groups[0]["lr"] = 0.1 * found["loss"]  # so that a wrong last bit shows in the weights

    run.every_epoch(check)
    for x, y in run.batches(data, lane_batch=4, epochs=4):
        run.step(F.cross_entropy(model(x), y))

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
