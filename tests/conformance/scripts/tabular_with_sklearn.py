"""Kaggle tabular: sklearn's digits, StandardScaler, a stratified split, embeddings of a categorical column, focal loss."""
# expect: same
import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import StratifiedKFold
from sklearn.preprocessing import StandardScaler
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


class Tabular(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(4, 3)
        self.net = nn.Sequential(nn.Linear(67, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 10))

    def forward(self, x, c):
        return self.net(torch.cat([x, self.embed(c)], 1))


def main(run: train.Run) -> None:
    x, y = load_digits(return_X_y=True)
    x, y = x[:400], y[:400]
    rows, _ = next(iter(StratifiedKFold(5, shuffle=True, random_state=0).split(x, y)))
    x = StandardScaler().fit(x[rows]).transform(x)[rows].astype(np.float32)
    y = y[rows]
    data = TensorDataset(torch.from_numpy(x), torch.from_numpy(x[:, 20] > 0).long(), torch.from_numpy(y).long())
    model = Tabular()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    run.track(model=model, optimizer=optimizer)
    for x, c, y in run.batches(data, lane_batch=8, epochs=3):
        log_p = F.log_softmax(model(x, c), 1).gather(1, y[:, None])[:, 0]
        run.step((-((1 - log_p.exp()) ** 2) * log_p).mean())

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
