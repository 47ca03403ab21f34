"""torch.nn.utils.prune masks made before training: weight_orig is the parameter, weight_mask a buffer."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train
from torch.nn.utils import prune


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(51)
    data = TensorDataset(torch.randn(144, 6, generator=g), torch.randint(0, 3, (144,), generator=g))
    model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 3))
    prune.random_unstructured(model[0], "weight", amount=0.3)
    prune.ln_structured(model[2], "weight", amount=0.25, n=2, dim=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=1e-2)
    run.track(model=model, optimizer=optimizer)

    def prune_more(run):
        prune.l1_unstructured(model[0], "weight", amount=6)

    run.every_epoch(prune_more)
    for x, y in run.batches(data, lane_batch=4, epochs=4):
        run.step(F.cross_entropy(model(x), y))
    prune.remove(model[0], "weight")
    prune.remove(model[2], "weight")
    assert int((model[0].weight == 0).sum()) >= 24

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
