"""What the batcher costs a model on a GPU: `python -m bench.serving.batcher`.

    python -m bench.serving.batcher                      # on the GPU, if there is one
    python -m bench.serving.batcher --device cpu --width 512 --seconds 2

A torch model is asked by many clients at once, each with one row at a time, through a replica's
engine: the batcher puts the rows together, a thread computes them, each client gets its own. Beside
it, in turns, the bare model: the same servable, called with whole batches of the same size, from
host memory and back. Figures are rows a second.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch
from torch import nn

from holdfast.models.records import ModelKind, Signature, TensorSpec, Version
from holdfast.models.torch_kind import TorchServable
from holdfast.serve.protocol.tensors import InferRequest
from holdfast.serve.records import Limits, ServiceSpec
from holdfast.serve.replica.batching import BatchPace
from holdfast.serve.replica.engine import Engine

GOAL: Final = 0.85
Array = np.ndarray[Any, Any]


def signature(width: int) -> Signature:
    return Signature(
        (TensorSpec("x", "FP32", (-1, width)),), (TensorSpec("y", "FP32", (-1, width)),)
    )


def network(width: int, depth: int) -> nn.Module:
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.GELU()]
    return nn.Sequential(*layers)


def bare(servable: TorchServable, rows: Array, seconds: float) -> float:
    """Rows a second of the model alone."""
    done, end_s, began_s = 0, time.monotonic() + seconds, time.monotonic()
    while time.monotonic() < end_s:
        servable.predict({"x": rows})
        done += len(rows)
    return done / (time.monotonic() - began_s)


async def batched(engine: Engine, rows: Array, clients: int, seconds: float) -> float:
    """Rows a second through the batcher."""
    end_s = time.monotonic() + seconds
    held = engine.held(1)

    async def client(number: int) -> int:
        done = 0
        row = rows[number % len(rows)][None]
        while time.monotonic() < end_s:
            await engine.infer(InferRequest("m", 1, "", {"x": row}), held)
            done += 1
        return done

    began_s = time.monotonic()
    done = sum(await asyncio.gather(*(client(number) for number in range(clients))))
    return done / (time.monotonic() - began_s)


async def measure(given: argparse.Namespace) -> list[tuple[float, float]]:
    torch.manual_seed(1)
    module = network(given.width, given.depth).to(given.device)
    servable = TorchServable(signature(given.width), module, torch.device(given.device))
    chance = np.random.default_rng(1)
    rows = chance.standard_normal((given.batch, given.width), dtype=np.float32)
    limits = Limits(queue_max=4 * given.clients, batch_max=given.batch, timeout_s=60.0)
    engine = Engine(ServiceSpec("s", "m", "1", limits=limits))
    record = Version("m", 1, ModelKind.TORCH, signature(given.width), {}, "sha256:bench", 0.0)
    engine.install(record, servable.predict, batches=True, pace=BatchPace.LONG)
    found = []
    for number in range(given.rounds + 1):
        alone = await asyncio.to_thread(bare, servable, rows, given.seconds)
        through = await batched(engine, rows, given.clients, given.seconds)
        if number:  # the first one warms up
            found.append((alone, through))
    await engine.remove(1)
    return found


def main(argv: Sequence[str] | None = None) -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options.add_argument("--width", type=int, default=8192)
    options.add_argument("--depth", type=int, default=16)
    options.add_argument("--batch", type=int, default=64)
    options.add_argument("--clients", type=int, default=256)
    options.add_argument("--seconds", type=float, default=3.0)
    options.add_argument("--rounds", type=int, default=5)
    given = options.parse_args(argv)
    found = asyncio.run(measure(given))
    alone = statistics.median(each[0] for each in found)
    through = statistics.median(each[1] for each in found)
    ratio = statistics.median(each[1] / each[0] for each in found)
    print(f"{given.device}, {given.depth} layers of {given.width}, batches of {given.batch} rows")
    print(f"bare model      {alone:12,.0f} rows/s")
    print(f"behind batcher  {through:12,.0f} rows/s, {given.clients} clients with one row each")
    word = "reached" if ratio >= GOAL else "MISSED"
    print(f"ratio {ratio:.3f} (goal at least {GOAL}): {word}")


if __name__ == "__main__":
    main()
