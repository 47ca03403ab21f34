"""An EMA in run.every(1) with updates=2: it counts updates, and hooks come after each of them."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(307)
    data = TensorDataset(torch.randn(100, 6, generator=g), torch.randint(0, 3, (100,), generator=g))
    model = nn.Linear(6, 3)
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    run.track(model=model, ema=ema, optimizer=optimizer)
    run.every(1, lambda run: ema.update_parameters(model))
    for batch in run.batches(data, lane_batch=4, epochs=2, updates=2):
        run.step(F.cross_entropy(model(batch.x), batch.y))
    assert run.completed == 20 and run.epoch == 2, (run.completed, run.epoch)
    assert int(ema.n_averaged) == 20, int(ema.n_averaged)

    published_1 = run.publish(model, "model")
    published_2 = run.publish(ema, "ema")
    if run.first:
        print("SHA", published_1.digest)
        print("SHA", published_2.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
