"""Stochastic weight averaging as in torch's documentation: cosine first, from epoch 3 on SWALR and the average."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.optim.swa_utils import SWALR, AveragedModel, update_bn
from torch.utils.data import DataLoader


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(3)
    data = TensorDataset(torch.randn(144, 6, generator=g), torch.randint(0, 3, (144,), generator=g))
    model = nn.Sequential(nn.Linear(6, 10), nn.BatchNorm1d(10), nn.ReLU(), nn.Linear(10, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    swa_model = AveragedModel(model)
    cosine = CosineAnnealingLR(optimizer, T_max=6)
    swa_scheduler = SWALR(optimizer, swa_lr=0.05, anneal_epochs=2)
    run.track(model=model, swa_model=swa_model, optimizer=optimizer)
    run.track(cosine=cosine, swa_scheduler=swa_scheduler, every="never")

    def epoch_end(run):
        if run.epoch > 3:
            swa_model.update_parameters(model)
            swa_scheduler.step()
        else:
            cosine.step()

    run.every_epoch(epoch_end)
    for x, y in run.batches(data, lane_batch=4, epochs=6):
        run.step(F.cross_entropy(model(x), y))
    update_bn(DataLoader(data, batch_size=24), swa_model)
    assert int(swa_model.n_averaged) == 3, int(swa_model.n_averaged)
    assert abs(optimizer.param_groups[0]["lr"] - 0.05) < 1e-9, optimizer.param_groups[0]["lr"]

    published_1 = run.publish(model, "model")
    published_2 = run.publish(swa_model, "swa_model")
    if run.first:
        print("SHA", published_1.digest)
        print("SHA", published_2.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
