"""A global step counter of the script's own, used for a KL warm-up."""
# expect: same or refused:
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train

global_step = 0


def main(run: train.Run) -> None:
    global global_step
    g = torch.Generator().manual_seed(43)
    data = TensorDataset(torch.randn(144, 6, generator=g))
    encoder, decoder = nn.Linear(6, 4), nn.Linear(2, 6)
    model = nn.ModuleDict({"encoder": encoder, "decoder": decoder})
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    run.track(model=model, optimizer=optimizer)
    for (x,) in run.batches(data, lane_batch=4, epochs=3):
        mean, log_var = encoder(x).chunk(2, 1)
        z = mean + torch.randn_like(mean) * (log_var / 2).exp()
        kl = -0.5 * (1 + log_var - mean**2 - log_var.exp()).sum(1).mean()
        beta = min(1.0, global_step / 50)
        global_step += 1
        run.step(F.mse_loss(decoder(z), x), beta * kl)

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
