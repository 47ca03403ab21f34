"""Quantization-aware training with torch.ao's FakeQuantize: observers' buffers, their shapes and the on/off switches change."""
# expect: same or refused: quant
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train
import warnings

warnings.simplefilter("ignore")
from torch.ao.quantization import (  # noqa: E402
    FakeQuantize,
    MovingAverageMinMaxObserver,
    MovingAveragePerChannelMinMaxObserver,
    disable_observer,
)


class QLinear(nn.Linear):
    def __init__(self, *args):
        super().__init__(*args)
        self.act = FakeQuantize(MovingAverageMinMaxObserver, quant_min=0, quant_max=255, dtype=torch.quint8)
        self.wt = FakeQuantize(
            MovingAveragePerChannelMinMaxObserver, quant_min=-128, quant_max=127, dtype=torch.qint8,
            qscheme=torch.per_channel_symmetric, ch_axis=0,
        )

    def forward(self, x):
        return F.linear(self.act(x), self.wt(self.weight), self.bias)


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(50)
    data = TensorDataset(torch.randn(144, 6, generator=g), torch.randint(0, 3, (144,), generator=g))
    model = nn.Sequential(QLinear(6, 12), nn.ReLU(), QLinear(12, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    run.track(model=model, optimizer=optimizer)

    def stop_observing(run):
        if run.epoch >= 2:
            model.apply(disable_observer)

    run.every_epoch(stop_observing)
    for x, y in run.batches(data, lane_batch=4, epochs=4):
        run.step(F.cross_entropy(model(x), y))
    assert int(model[0].act.observer_enabled[0]) == 0

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
