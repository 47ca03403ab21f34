"""Adam's moments and step counts are copied into a module and published, so that a difference in them shows."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(237)
    data = TensorDataset(torch.randn(130, 6, generator=g), torch.randint(0, 3, (130,), generator=g))
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, amsgrad=True)
    run.track(model=model, optimizer=optimizer)
    for x, y in run.batches(data, lane_batch=4, epochs=3):
        run.step(F.cross_entropy(model(x), y))
    moments = nn.Module()
    for i, p in enumerate(model.parameters()):
        for key, value in optimizer.state[p].items():
            moments.register_buffer(f"{key}_{i}", torch.as_tensor(value).clone())
    assert float(moments.step_0) == run.completed == 18, (moments.step_0, run.completed)

    published_1 = run.publish(model, "model")
    published_2 = run.publish(moments, "moments")
    if run.first:
        print("SHA", published_1.digest)
        print("SHA", published_2.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
