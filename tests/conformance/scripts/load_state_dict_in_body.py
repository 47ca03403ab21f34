"""The body rolls back to a snapshot when the loss is too large: load_state_dict in the body."""
# expect: same or refused:
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train
import copy


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(209)
    data = TensorDataset(torch.randn(144, 6, generator=g), torch.randint(0, 3, (144,), generator=g))
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0)
    run.track(model=model, optimizer=optimizer)
    safe = copy.deepcopy(model.state_dict())
    for x, y in run.batches(data, lane_batch=4, epochs=3):
        loss = F.cross_entropy(model(x), y)
        if loss.item() > 2.0:
            model.load_state_dict(safe)
            loss = F.cross_entropy(model(x), y)
        run.step(loss)

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
