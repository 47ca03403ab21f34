"""What compression does to accuracy, and how many bytes it saves, on the digits.

    python -m bench.training.compression [--epochs 20] [--workers 4] [--only int8 ...] [--local 3]

Accuracy: `examples/digits.py` alone, 8 lanes (the bits are those of any number of workers). Bytes:
what one worker sends for the sum of one step of the same network, counted at its mesh, between
workers that are connected over loopback. `--local N` measures the local mode with N steps a round;
bytes are then those of a round, without what lane 0 tells of the inner optimizers.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from bench.training.exchange import LANES, connected
from examples.digits import network
from holdfast.train.members.conversation import Conversation
from holdfast.train.members.mesh import Mesh
from holdfast.train.members.tls import Connection
from holdfast.train.states.tracked import Tracked
from holdfast.train.sums.compression import code_of
from holdfast.train.sums.exchange import MeshExchange
from holdfast.train.sums.gradients import GradientSums, Layout

WAYS = ["none", "bf16", "int8", "topk:0.01", "topk:0.1", "powersgd:4"]
SCRIPT = Path(__file__).parents[2] / "examples" / "digits.py"


class Counted(Mesh):
    """A mesh that counts what goes out."""

    sent_bytes = 0

    def exchange(
        self, sends: Mapping[int, Any], receives: Mapping[int, Any], **options: Any
    ) -> Any:
        self.sent_bytes += sum(
            memoryview(each).nbytes for buffers in sends.values() for each in buffers
        )
        return super().exchange(sends, receives, **options)


def sent(way: str, me: int, sockets: dict[int, Connection]) -> int:
    """One worker's part of one sum; the bytes that it has sent."""
    torch.manual_seed(1)
    tracked = Tracked()
    tracked.add("model", network())
    code, count = code_of(way, tracked), len(sockets) + 1
    parameters = tracked.parameters()
    layout = Layout(code.summed(), block=code.block) if code else Layout(parameters)
    share = {n: range(n * LANES // count, (n + 1) * LANES // count) for n in range(count)}
    sums = GradientSums(layout, LANES, code)
    for lane in share[me]:
        sums.begin(lane)
        for number, parameter in enumerate(parameters):
            gradient = torch.randn_like(parameter)
            sums.take(number, code.shrink(lane, number, gradient) if code else gradient)
        sums.end()
    mesh = Counted(me, 1, 0, sockets)
    exchange = MeshExchange(
        mesh, Conversation(mesh), share, LANES, layout, lambda _: layout.allocate(), code
    )
    exchange.begin(1, sums, b"")
    exchange.finish(b"")
    exchange.close()
    return mesh.sent_bytes


def bytes_of(way: str, workers: int) -> int:
    """The most that a worker sends."""
    sockets = connected(workers)
    with ThreadPoolExecutor(workers) as pool:
        return max(pool.map(lambda me: sent(way, me, sockets[me]), range(workers)))


def accuracy_of(way: str, epochs: int, local_steps: int | None) -> float:
    settings = {"compress": way, "epochs": str(epochs)}
    if local_steps is not None:
        settings |= {"local_steps": str(local_steps), "outer_momentum": "0.5"}
    environment = {
        **os.environ,
        "HOLDFAST_SETTINGS": json.dumps(settings),
        "HOLDFAST_MODE": "sync" if local_steps is None else "local",
    }
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, str(SCRIPT)],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
    return float(re.findall(r"^accuracy ([\d.]+)%", done.stdout, re.MULTILINE)[-1])


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--epochs", type=int, default=20)
    options.add_argument("--workers", type=int, default=4)
    options.add_argument("--only", nargs="+", default=WAYS)
    options.add_argument("--local", type=int, metavar="N", help="steps a round")
    given = options.parse_args()
    print(f"torch {torch.__version__}, {given.epochs} epochs, {given.workers} workers")
    print(f"{'compress':12} {'bytes a sum':>12} {'of none':>8} {'accuracy':>9}")
    plain = bytes_of("none", given.workers)
    for way in given.only:
        size = bytes_of(way, given.workers)
        found = accuracy_of(way, given.epochs, given.local)
        print(f"{way:12} {size:>12} {size / plain:>8.3f} {found:>8.2f}%", flush=True)


if __name__ == "__main__":
    main()
