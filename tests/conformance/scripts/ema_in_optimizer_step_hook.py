"""The average is updated by torch's own optimizer.register_step_post_hook: once an update, not once a lane."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(6)
    data = TensorDataset(torch.randn(144, 8, generator=g), torch.randn(144, 1, generator=g))
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    optimizer.register_step_post_hook(lambda opt, args, kwargs: ema.update_parameters(model))
    run.track(model=model, ema=ema, optimizer=optimizer)
    for x, y in run.batches(data, lane_batch=4, epochs=4):
        run.step(F.mse_loss(model(x), y))
    assert int(ema.n_averaged) == run.completed == 24, (int(ema.n_averaged), run.completed)

    published_1 = run.publish(model, "model")
    published_2 = run.publish(ema, "ema")
    if run.first:
        print("SHA", published_1.digest)
        print("SHA", published_2.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
