"""An exponential average with torch's AveragedModel, buffers included, updated in a hook after every step."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(0)
    data = TensorDataset(torch.randn(240, 8, generator=g), torch.randint(0, 3, (240,), generator=g))
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    run.track(model=model, ema=ema, optimizer=optimizer)
    run.every(1, lambda run: ema.update_parameters(model))
    for x, y in run.batches(data, lane_batch=4, epochs=4):
        run.step(F.cross_entropy(model(x), y))
    assert run.completed == 40, run.completed
    assert int(ema.n_averaged) == 40, int(ema.n_averaged)
    assert not torch.equal(ema.module[0].weight, model[0].weight)

    published_1 = run.publish(model, "model")
    published_2 = run.publish(ema, "ema")
    if run.first:
        print("SHA", published_1.digest)
        print("SHA", published_2.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
