"""Transfer learning: a frozen backbone with its batch norms in eval mode inside a model that is in train mode."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(34)
    data = TensorDataset(torch.randn(144, 6, generator=g) * 4, torch.randint(0, 3, (144,), generator=g))
    backbone = nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU()).requires_grad_(False)
    head = nn.Sequential(nn.Dropout(0.2), nn.Linear(12, 3))
    model = nn.Sequential(backbone, head)
    start = backbone[0].weight.clone()
    optimizer = torch.optim.Adam(filter(lambda p: p.requires_grad, model.parameters()), lr=1e-2, weight_decay=0.1)
    run.track(model=model, optimizer=optimizer)
    for x, y in run.batches(data, lane_batch=4, epochs=3):
        model.train()
        backbone.eval()
        run.step(F.cross_entropy(model(x), y))
    assert torch.equal(start, backbone[0].weight)
    assert int(backbone[1].num_batches_tracked) == 0

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
