"""Trainings on data of all kinds, for `TrainingStage`: see `training_host`."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import obstore
import torch
from obstore.store import LocalStore, S3Store
from torch import nn
from torch.nn import functional
from torch.utils.data import IterableDataset

from holdfast import train
from tests.faults.training_scenarios import Points, _answer
from tests.servers.s3 import ACCESS_KEY, BUCKET, SECRET_KEY

WIDTH = 4


def sample_of(file: int, number: int) -> tuple[torch.Tensor, int]:
    """A sample that says who it is."""
    chance = torch.Generator().manual_seed(file * 100_000 + number)
    return torch.randn(WIDTH, generator=chance), (file + number) % 2


class Meter:
    """Counts what a worker reads, in a file that outlives it."""

    def __init__(self, folder: Path, worker: int) -> None:
        self._file = (folder / f"read-{worker}-{os.getpid()}.jsonl").open("a", buffering=1)

    def note(self, file: int, start: int, count: int, size_bytes: int) -> None:
        row = {"file": file, "start": start, "samples": count, "bytes": size_bytes}
        self._file.write(json.dumps(row) + "\n")


def bucket(endpoint: str) -> S3Store:
    return S3Store(
        BUCKET,
        endpoint=endpoint,
        region="us-east-1",
        access_key_id=ACCESS_KEY,
        secret_access_key=SECRET_KEY,
        client_options={"allow_http": True},
    )


class Files:
    """Files of rows of equal size, in a folder or a bucket, read some rows at a time."""

    def __init__(self, options: dict[str, Any], meter: Meter) -> None:
        self._meter, self._piece = meter, options.get("piece", 8)
        if "endpoint" in options:
            self._store: Any = bucket(options["endpoint"])
        else:
            self._store = LocalStore(options["rows"])

    def read(self, file: int, start: int) -> Iterator[tuple[torch.Tensor, int]]:
        row, path = 4 * (WIDTH + 1), f"rows-{file}"
        at, size = start * row, obstore.head(self._store, path)["size"]
        while at < size:
            length = min(self._piece * row, size - at)
            data = bytes(obstore.get_range(self._store, path, start=at, length=length))
            rows = torch.frombuffer(bytearray(data), dtype=torch.float32).view(-1, WIDTH + 1)
            self._meter.note(file, at // row, len(rows), len(data))
            at += len(data)
            for each in rows:
                yield each[:WIDTH], int(each[WIDTH])


def write_rows(folder: Path, file: int, count: int) -> bytes:
    """A file that `Files` reads."""
    chance = torch.Generator().manual_seed(file)
    rows = torch.randn(count, WIDTH + 1, generator=chance)
    rows[:, WIDTH] = (rows[:, :WIDTH].sum(1) > 0).float()
    folder.mkdir(parents=True, exist_ok=True)
    data = rows.numpy().tobytes()
    (folder / f"rows-{file}").write_bytes(data)
    return data


class Started(IterableDataset[Any]):
    """An `IterableDataset` that can be entered at a position."""

    def __init__(self, samples: int, meter: Meter) -> None:
        self._samples, self._meter = samples, meter

    def __iter__(self) -> Iterator[Any]:
        return self.start(0, 1, 0, 0)

    def start(self, lane: int, lanes: int, epoch: int, at: int) -> Iterator[Any]:
        mine = range(lane, self._samples, lanes)[at:]
        for number in mine:
            self._meter.note(epoch, number, 1, 0)
            yield sample_of(epoch, number)


def data_of(options: dict[str, Any], meter: Meter) -> Any:
    kind = options["data"]
    if kind == "files":
        return train.Sharded(
            range(options["files"]),
            read=Files(options, meter).read,
            lengths=options.get("lengths"),
            shuffle_files=options.get("shuffle_files", False),
        )
    if kind == "started":
        return Started(options["samples"], meter)
    return Points((WIDTH,), options["samples"])


def samplers_of(options: dict[str, Any]) -> dict[str, Any]:
    count = options.get("samples", 0)
    match options.get("sampler"):
        case "weighted":
            return {"sampler": train.WeightedSampler([1 + n % 7 for n in range(count)])}
        case "buckets":
            lengths = [n * 37 % 50 for n in range(count)]
            return {"batch_sampler": train.LengthBuckets(lengths, 5, lane_batch=5)}
        case "torch":
            return {"sampler": torch.utils.data.SubsetRandomSampler(range(0, count, 2))}
    return {}


def scenario(options: dict[str, Any]) -> None:
    worker = int(os.environ.get("HOLDFAST_WORKER", "-1"))
    train.launch(lambda run: _main(run, worker, options), settings={"lr": 0.05})


def _main(run: train.Run, worker: int, options: dict[str, Any]) -> None:
    meter = Meter(Path(options["folder"]), worker)
    data = data_of(options, meter)
    layers = [nn.Linear(WIDTH, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 2)]
    model = nn.Sequential(*layers)
    run.track(model=model, optimizer=torch.optim.Adam(model.parameters(), lr=run.settings.lr))
    run.accumulate(options.get("parts", 1))
    samplers = samplers_of(options)
    size = {} if "batch_sampler" in samplers else {"lane_batch": options.get("lane_batch", 4)}
    for x, y in run.batches(
        data,
        epochs=options.get("epochs", 2),
        loader_workers=options.get("loader_workers", 0),
        drop_last=options.get("drop_last", False),
        **size,
        **samplers,
    ):
        loss = functional.cross_entropy(model(x), y)
        if [worker, run.completed + 1] in options.get("kills", ()):
            os.kill(os.getpid(), signal.SIGKILL)
        run.step(loss)
    if multiprocessing.active_children():
        raise AssertionError("loader processes are left over")
    _answer(run)
