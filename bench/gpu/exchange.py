"""How long the sum of gradients takes between workers that share one GPU, and its bits.

    python -m bench.gpu.exchange --workers 2 4 --megabytes 444
    python -m bench.gpu.exchange --workers 4 --stages 64 256     # members wait once in so many MB
    python -m bench.gpu.exchange --device cpu --megabytes 40     # the same code without a GPU

Each worker is a process. It has the sums of its lanes ready; a round ends when everyone has the sum
over all lanes. Over shared memory (of the GPU: CUDA IPC) and over TCP, taking turns. The SHA-256 of
each is to be that of a plain sum in tree order, made by one process: `right` or `WRONG`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bench.gpu.contestant import live_apart
from bench.training.exchange import LANES, Sockets, connected
from holdfast.train.members.conversation import Conversation
from holdfast.train.members.mesh import Mesh
from holdfast.train.members.tls import Connection
from holdfast.train.sums import over_levels, tree
from holdfast.train.sums.exchange import MeshExchange
from holdfast.train.sums.exchange_plan import Way, bucket_bytes
from holdfast.train.sums.gradients import Flat, GradientSums, Layout
from holdfast.train.sums.over_levels import OverLevels
from holdfast.train.sums.stepping import memory_of

WARM = 3  # rounds
LAYERS = 48


def layout_of(megabytes: int, device: torch.device) -> Layout:
    """As a language model has it: words, and layers of equal size."""
    floats = megabytes * 1_000_000 // 4
    sizes = [floats // 4, *[floats * 3 // 4 // LAYERS] * LAYERS]
    parameters = [nn.Parameter(torch.zeros(size, device=device)) for size in sizes]
    return Layout(parameters, bucket_bytes(LANES))


def gradient(layout: Layout, lane: int) -> list[torch.Tensor]:
    chance = torch.Generator(layout.device).manual_seed(lane)
    return [
        torch.randn(each.shape, device=layout.device, generator=chance)
        for each in layout.parameters
    ]


def digest(flat: Flat) -> str:
    found = hashlib.sha256()
    for bucket in flat:
        found.update(bucket.cpu().numpy().tobytes())
    return found.hexdigest()[:12]


class Contestant:
    """One worker on one way."""

    def __init__(
        self,
        me: int,
        sockets: dict[int, Connection],
        megabytes: int,
        device: torch.device,
        way: Way,
        stage_bytes: int | None = None,
    ) -> None:
        count = len(sockets) + 1
        held = {n: range(n * LANES // count, (n + 1) * LANES // count) for n in range(count)}
        self.layout, self._step = layout_of(megabytes, device), 0
        memory = memory_of(device) if way is not Way.TCP else None
        if memory is not None and stage_bytes is not None:
            memory.stage_bytes = memory.block_bytes = stage_bytes
            over_levels.LEVEL_STAGE_BYTES = stage_bytes  # type: ignore[misc]
        self.layout.memory = memory
        self.sums = GradientSums(self.layout, LANES)
        for lane in held[me]:
            self.sums.begin(lane)
            for number, each in enumerate(gradient(self.layout, lane)):
                self.sums.take(number, each)
            self.sums.end()
        mesh = Mesh(me, 1, 0, sockets)
        self.exchange = MeshExchange(
            mesh, Conversation(mesh), held, LANES, self.layout, self._total, memory=memory
        )

    def _total(self, way: Way) -> Flat:
        if way is Way.TCP and self.layout.device.type == "cuda":
            return self.layout.allocate(torch.device("cpu"), pinned=True)
        return self.layout.allocate()

    def round(self) -> float:
        """In ms. Over TCP the sum ends on the host, and the way back to the GPU is not in it."""
        if self.layout.device.type == "cuda":
            torch.cuda.synchronize()
        begun_s = time.perf_counter()
        self._step += 1
        self.exchange.begin(self._step, self.sums, b"")
        self.exchange.finish(b"")
        return (time.perf_counter() - begun_s) * 1000


def plain(layout: Layout) -> str:
    """The digest of the sum, as one process makes it."""
    values = {}
    for lane in range(LANES):
        flat = layout.allocate()
        for number, each in enumerate(gradient(layout, lane)):
            layout.view(flat, number).copy_(each)
        values[tree.PartialSum(lane, 1)] = flat
    return digest(tree.fold(values, LANES, lambda a, b: [x + y for x, y in zip(a, b, strict=True)]))


def worker(
    me: int, ends: dict[str, dict[int, Connection]], given: argparse.Namespace
) -> dict[str, Any]:
    torch.set_num_threads(1)
    device = torch.device(given.device, 0) if given.device == "cuda" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    row: dict[str, Any] = {}
    for name, sockets in ends.items():
        way, _, stage = name.replace(Way.NCCL.value, "NCCL").partition(", ")
        if way == "NCCL":
            way = Way.NCCL.value
            os.environ["HOLDFAST_NETWORK"] = "trusted"
            live_apart(str(me))
        stage_bytes = int(stage.split()[0]) * 1_000_000 if stage else None
        one = Contestant(me, sockets, given.megabytes, device, Way(way), stage_bytes)
        rounds = given.rounds if one.layout.memory is not None else min(given.rounds, 5)
        while way == Way.NCCL.value and not isinstance(one.exchange._transport, OverLevels):
            one.round()  # all see it with the same step
        times = [one.round() for _ in range(rounds + WARM)][WARM:]
        choice = one.exchange.choice
        assert choice is not None
        found = digest(one.exchange.total)
        took = statistics.median(times), min(times), max(times)
        row[name] = [*took, found, choice.way.value, choice.why]
        if me == 0:
            row["plain"] = row.get("plain") or plain(one.layout)
    if device.type == "cuda":
        row["peak_mb"] = torch.cuda.max_memory_allocated() / 1e6
    return row


def contestants(given: argparse.Namespace) -> list[str]:
    """The ways, and those over memory in stages of other sizes."""
    found = [Way.SHARED.value, *(f"{Way.SHARED.value}, {size} MB" for size in given.stages)]
    nccl = [Way.NCCL.value, *(f"{Way.NCCL.value}, {size} MB" for size in given.stages)]
    return [*found, *([Way.TCP.value] if given.tcp else []), *(nccl if given.nccl else [])]


def measure(count: int, given: argparse.Namespace) -> list[dict[str, Any]]:
    made: dict[str, Sockets] = {name: connected(count) for name in contestants(given)}
    with tempfile.TemporaryDirectory() as folder:
        pids = []
        for me in range(count):
            if (pid := os.fork()) == 0:
                status = 1
                try:
                    for sockets in made.values():
                        for other in range(count):
                            for each in sockets[other].values() if other != me else ():
                                each.close()
                    row = worker(me, {name: found[me] for name, found in made.items()}, given)
                    Path(folder, str(me)).write_text(json.dumps(row))
                    status = 0
                except BaseException:
                    traceback.print_exc()
                finally:
                    sys.stderr.flush()
                    os._exit(status)
            pids.append(pid)
        for sockets in made.values():
            for each in (sock for found in sockets for sock in found.values()):
                each.close()
        ends = [os.waitpid(pid, 0)[1] for pid in pids]  # of all, before one is said to have failed
        if any(ends):
            raise SystemExit(f"a worker of {count} has failed")
        return [json.loads(Path(folder, str(me)).read_text()) for me in range(count)]


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--workers", type=int, nargs="+", default=[2, 4])
    options.add_argument("--megabytes", type=int, default=444)
    options.add_argument("--rounds", type=int, default=20)
    options.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    options.add_argument("--stages", type=int, nargs="+", default=[], help="also in such, MB")
    options.add_argument("--tcp", action=argparse.BooleanOptionalAction, default=True)
    options.add_argument("--nccl", action="store_true", help="also as if each were on a machine")
    given = options.parse_args()
    print(f"torch {torch.__version__}, {given.device}, {given.megabytes} MB, {LANES} lanes")
    for count in given.workers:
        rows = measure(count, given)
        for name in contestants(given):
            found = [row[name] for row in rows]
            median, low, high, _, took, why = max(found, key=lambda each: each[0])
            shas = {each[3] for each in found}
            verdict = "right" if shas == {rows[0]["plain"]} else f"WRONG, not {rows[0]['plain']}"
            print(
                f"{count} workers, {name}: {median:.2f} ms ({low:.2f} to {high:.2f}), "
                f"took {took} ({why}); SHA-256 {' '.join(sorted(shas))} {verdict}",
                flush=True,
            )


if __name__ == "__main__":
    main()
