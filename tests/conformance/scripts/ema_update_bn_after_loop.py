"""An average without buffers whose batch norms are computed again by update_bn after the loop, then published."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn
from torch.utils.data import DataLoader


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(1)
    data = TensorDataset(torch.randn(120, 6, generator=g) * 3 + 1, torch.randint(0, 2, (120,), generator=g))
    model = nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.Tanh(), nn.Linear(12, 2))
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.95))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    run.track(model=model, average=average, optimizer=optimizer)
    run.every(1, lambda r: average.update_parameters(model))
    for batch in run.batches(data, lane_batch=4, epochs=3):
        run.step(F.cross_entropy(model(batch.x), batch.y))
    before = average.module[1].running_mean.clone()
    update_bn(DataLoader(data, batch_size=20), average)
    assert int(average.module[1].num_batches_tracked) == 6
    assert not torch.equal(before, average.module[1].running_mean)

    published_1 = run.publish(model, "model")
    published_2 = run.publish(average, "average")
    if run.first:
        print("SHA", published_1.digest)
        print("SHA", published_2.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
