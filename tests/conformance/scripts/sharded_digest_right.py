"""train.Sharded with digests= that are all right."""
# expect: same
import hashlib
import os
import tempfile

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from holdfast import train


def files_on_disk():
    folder = os.path.join(tempfile.gettempdir(), "conformance-digests-right")
    os.makedirs(folder, exist_ok=True)
    files, digests = [], {}
    for i in range(6):
        content = np.random.RandomState(i).randn(8, 4).astype("float32").tobytes()
        path = os.path.join(folder, f"part-{i}")
        with open(f"{path}.{os.getpid()}", "wb") as out:
            out.write(content)
        os.replace(f"{path}.{os.getpid()}", path)
        files.append(path)
        digests[path] = "sha256:" + hashlib.sha256(content).hexdigest()
    return files, digests


def read(file):
    for row in np.fromfile(file, dtype="float32").reshape(-1, 4):
        x = torch.from_numpy(row.copy())
        yield x, x.sum(0, keepdim=True)


def main(run: train.Run) -> None:
    files, digests = files_on_disk()
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    run.track(model=model, optimizer=optimizer)
    for x, y in run.batches(train.Sharded(files, read=read, digests=digests), lane_batch=4, epochs=2):
        run.step(F.mse_loss(model(x), y))

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
