"""Monte-Carlo dropout on purpose: ten random passes in run.evaluate decide the learning rate."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(187)
    data = TensorDataset(torch.randn(96, 6, generator=g), torch.randint(0, 3, (96,), generator=g))
    valid = TensorDataset(torch.randn(45, 6, generator=g))
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    run.track(model=model, optimizer=optimizer)

    @torch.no_grad()
    def uncertainty(batch):
        draws = torch.stack([model(batch.x).softmax(1) for _ in range(10)])
        return {"variance": draws.var(0).sum()}

    def epoch_end(run):
        found = run.evaluate(uncertainty, valid)
        optimizer.param_groups[0]["lr"] = 0.01 + 0.1 * found["variance"]

    run.every_epoch(epoch_end)
    for x, y in run.batches(data, lane_batch=4, epochs=4):
        run.step(F.cross_entropy(model(x), y))

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
