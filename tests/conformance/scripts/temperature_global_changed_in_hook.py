"""Gumbel softmax: the temperature is a Python variable that a hook anneals by what it was before."""
# expect: same or refused:
# note: a difference shows only when a worker joins late or the job is restarted
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train

TEMPERATURE = [2.0]


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(190)
    data = TensorDataset(torch.randn(96, 6, generator=g))
    encoder, decoder = nn.Linear(6, 5), nn.Linear(5, 6)
    model = nn.Sequential(encoder, decoder)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    run.track(model=model, optimizer=optimizer)

    def anneal(run):
        TEMPERATURE[0] = max(0.5, TEMPERATURE[0] * 0.9)

    run.every(2, anneal)
    for (x,) in run.batches(data, lane_batch=4, epochs=4):
        hard = F.gumbel_softmax(encoder(x), tau=TEMPERATURE[0], hard=True)
        run.step(F.mse_loss(decoder(hard), x))

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
