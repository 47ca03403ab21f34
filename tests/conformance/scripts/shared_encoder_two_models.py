"""Two tracked models share one encoder, each with its own optimizer: the same parameters under several tracked names."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(230)
    data = TensorDataset(torch.randn(96, 6, generator=g), torch.randint(0, 3, (96,), generator=g))
    encoder = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU())
    classifier, autoencoder = nn.Sequential(encoder, nn.Linear(8, 3)), nn.Sequential(encoder, nn.Linear(8, 6))
    first = torch.optim.Adam(classifier.parameters(), lr=1e-2)
    second = torch.optim.SGD(autoencoder[1].parameters(), lr=0.1)
    run.track(classifier=classifier, autoencoder=autoencoder, first=first, second=second)
    for x, y in run.batches(data, lane_batch=4, epochs=4):
        run.step(F.cross_entropy(classifier(x), y), F.mse_loss(autoencoder(x), x))
    assert torch.equal(classifier[0][0].weight, autoencoder[0][0].weight)
    assert int(encoder[1].num_batches_tracked) == 2 * run.completed

    published_1 = run.publish(classifier, "classifier")
    published_2 = run.publish(autoencoder, "autoencoder")
    if run.first:
        print("SHA", published_1.digest)
        print("SHA", published_2.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
