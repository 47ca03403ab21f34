"""Mode local (DiLoCo) in launch, with batch norm, clipping, a schedule and an average in a hook."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(240)
    data = TensorDataset(torch.randn(288, 6, generator=g), torch.randint(0, 3, (288,), generator=g))
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 24)
    run.track(model=model, ema=ema, optimizer=optimizer, scheduler=scheduler)
    run.clip(1.0)
    run.every(1, lambda run: ema.update_parameters(model))
    for x, y in run.batches(data, lane_batch=4, epochs=2):
        run.step(F.cross_entropy(model(x), y))
    assert run.completed == 6, run.completed  # rounds of 4 steps
    assert int(ema.n_averaged) == 6

    published_1 = run.publish(model, "model")
    published_2 = run.publish(ema, "ema")
    if run.first:
        print("SHA", published_1.digest)
        print("SHA", published_2.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6, mode="local", settings={"local_steps": 4})
