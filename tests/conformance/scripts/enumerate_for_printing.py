"""enumerate, loss.item(), a running mean of losses and printing every 10th batch: harmless habits."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(45)
    data = TensorDataset(torch.randn(144, 6, generator=g), torch.randint(0, 3, (144,), generator=g))
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    run.track(model=model, optimizer=optimizer)
    running = 0.0
    for i, (x, y) in enumerate(run.batches(data, lane_batch=4, epochs=3)):
        out = model(x)
        loss = F.cross_entropy(out, y)
        run.step(loss)
        running += loss.item()
        if i % 10 == 9:
            print(f"[{i + 1}] loss: {running / 10:.3f}, accuracy {(out.argmax(1) == y).float().mean():.2f}")
            running = 0.0

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
