"""How long the sum over all workers takes: ours over shared memory as within a machine, over the
mesh's connections plain and with TLS as between machines, and Gloo's all-reduce.

    python -m bench.training.exchange [--floats 1000000 10000000] [--workers 2 4] [--rounds 15]

Each worker is a process of its own with one thread for arithmetic; all are on this machine, over
loopback. Ours starts from pieces that are ready (nothing overlaps with a backward pass) and ends
when the sum is everywhere. All take turns; the medians of all rounds are shown: the time of the
slowest worker, and behind the slash the processor's time of all workers together.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from holdfast.system.job_certificates import equip
from holdfast.system.job_credentials import Credentials
from holdfast.train.members.conversation import Conversation
from holdfast.train.members.mesh import Mesh, tune
from holdfast.train.members.tls import Connection, TlsSocket
from holdfast.train.sums.exchange import MeshExchange
from holdfast.train.sums.gradients import GradientSums, Layout
from holdfast.train.sums.shared_memory import HostMemory, PeerMemory

LANES = 8


Sockets = list[dict[int, Connection]]


def connected(count: int, credentials: Credentials | None = None) -> Sockets:
    """For each worker its connections to the others, over TCP; with credentials: and TLS."""
    found: Sockets = [{} for _ in range(count)]
    with socket.create_server(("127.0.0.1", 0)) as server:
        for one in range(count):
            for other in range(one):
                caller = socket.create_connection(server.getsockname())
                called = server.accept()[0]
                ends: tuple[Connection, Connection] = (caller, called)
                if credentials is not None:
                    ends = _encrypted(caller, called, credentials)
                found[one][other], found[other][one] = map(tune, ends)
    return found


def _encrypted(
    caller: socket.socket, called: socket.socket, credentials: Credentials
) -> tuple[TlsSocket, TlsSocket]:
    ends = (
        TlsSocket(caller, credentials.client, server=False),
        TlsSocket(called, credentials.server, server=True),
    )
    waiting = list(ends)
    while waiting:
        waiting = [end for end in waiting if not end.handshake()]
    return ends


def layout_of(floats: int) -> Layout:
    """As a model would have it: layers of different sizes."""
    sizes = [floats * share // 100 for share in (2, 30, 1, 20, 1, 26, 10, 10)]
    return Layout([nn.Parameter(torch.zeros(size)) for size in sizes])


class Ours:
    """One worker of our exchange; with memory: of the one over shared memory."""

    def __init__(
        self, me: int, sockets: dict[int, Connection], floats: int, memory: PeerMemory | None = None
    ) -> None:
        count = len(sockets) + 1
        layout = layout_of(floats)
        layout.memory = memory
        self._lanes = lanes = max(LANES, count)
        held = {
            worker: range(worker * lanes // count, (worker + 1) * lanes // count)
            for worker in range(count)
        }
        self._sums = GradientSums(layout, lanes)
        for lane in held[me]:
            self._sums.begin(lane)
            for number, parameter in enumerate(layout.parameters):
                self._sums.take(number, torch.full_like(parameter, lane + 1.0))
            self._sums.end()
        mesh = Mesh(me, 1, 0, sockets)
        total = layout.allocate()
        self._exchange = MeshExchange(
            mesh, Conversation(mesh), held, lanes, layout, lambda _: total, memory=memory
        )
        self._layout, self._step = layout, 0

    def round(self) -> None:
        self._step += 1
        self._exchange.begin(self._step, self._sums, b"")
        self._exchange.finish(b"")

    def check(self) -> None:
        right = self._lanes * (self._lanes + 1) / 2
        for number in range(len(self._layout.parameters)):
            assert bool((self._layout.view(self._exchange.total, number) == right).all())


class Gloo:
    """One worker of Gloo's all-reduce of the same number of floats, in buckets of DDP's size."""

    def __init__(self, me: int, count: int, floats: int, folder: str) -> None:
        untyped: Any = dist  # what it exports has no types
        gloo, store = untyped.ProcessGroupGloo, untyped.FileStore(f"{folder}/store", count)
        options = gloo._Options()
        options._devices = [gloo.create_device(hostname="127.0.0.1")]
        options._timeout = timedelta(seconds=60)
        self._group = gloo(store, me, count, options)
        size = 25 * 1024 * 1024 // 4
        self._buckets = list(torch.ones(floats).split(size))

    def round(self) -> None:
        for work in [self._group.allreduce([bucket]) for bucket in self._buckets]:
            work.wait()

    def barrier(self) -> None:
        self._group.barrier().wait()


WAYS = ("memory", "tcp", "tls")
Ends = dict[str, dict[int, Connection]]  # of one worker: for each way its connections


def worker(me: int, ends: Ends, floats: int, rounds: int, folder: str) -> dict[str, list[float]]:
    """For each contestant the time of a round, and the processor's, in ms."""
    torch.set_num_threads(1)
    gloo = Gloo(me, len(ends["tcp"]) + 1, floats, folder)
    ours = {
        way: Ours(me, ends[way], floats, HostMemory() if way == "memory" else None) for way in WAYS
    }
    turns: dict[str, Callable[[], None]] = {way: each.round for way, each in ours.items()}
    turns["gloo"] = gloo.round
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in turns}
    for number in range(rounds + 3):
        for name, turn in turns.items():
            gloo.barrier()
            begun_s, used_s = time.perf_counter(), time.process_time()
            turn()
            if number >= 3:  # the first ones warm up
                took = time.perf_counter() - begun_s, time.process_time() - used_s
                times[name].append(took)
    for each in ours.values():
        each.check()
    return {
        name: [statistics.median(column) * 1000 for column in zip(*found, strict=True)]
        for name, found in times.items()
    }


def measure(count: int, floats: int, rounds: int) -> dict[str, tuple[float, float]]:
    """The slowest worker's medians, and the processor's time of all, in milliseconds."""
    with tempfile.TemporaryDirectory() as folder:
        secret = secrets.token_hex(32)
        equip(Path(folder), secret)
        credentials = Credentials("bench", bytes.fromhex(secret), Path(folder))
        made = {way: connected(count, credentials if way == "tls" else None) for way in WAYS}
        pids = []
        for me in range(count):
            if (pid := os.fork()) == 0:
                status = 1
                try:
                    for found in made.values():
                        for other in range(count):
                            for each in found[other].values() if other != me else ():
                                each.close()
                    ends = {way: found[me] for way, found in made.items()}
                    row = worker(me, ends, floats, rounds, folder)
                    Path(folder, str(me)).write_text(json.dumps(row))
                    status = 0
                finally:
                    sys.stderr.flush()
                    os._exit(status)
            pids.append(pid)
        for found in made.values():
            for each in (sock for sockets in found for sock in sockets.values()):
                each.close()
        for pid in pids:
            if os.waitpid(pid, 0)[1]:
                raise SystemExit(f"a worker of {count} with {floats} floats has failed")
        rows = [json.loads(Path(folder, str(me)).read_text()) for me in range(count)]
    return {
        name: (max(row[name][0] for row in rows), sum(row[name][1] for row in rows))
        for name in rows[0]
    }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--floats", type=int, nargs="+", default=[1_000_000, 10_000_000])
    options.add_argument("--workers", type=int, nargs="+", default=[2, 4])
    options.add_argument("--rounds", type=int, default=15)
    given = options.parse_args()
    print(f"torch {torch.__version__}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    names = (*WAYS, "gloo")
    columns = " ".join(f"{name + ' ms / CPU':>18}" for name in names)
    print(f"{'floats':>12} {'workers':>8} {columns} {'memory/tcp':>11} {'memory/gloo':>12}")
    for floats in given.floats:
        for count in given.workers:
            found = measure(count, floats, given.rounds)
            columns = " ".join(f"{found[name][0]:>9.2f} /{found[name][1]:>7.2f}" for name in names)
            one = found["memory"][0]
            ratios = f"{one / found['tcp'][0]:>11.2f} {one / found['gloo'][0]:>12.2f}"
            print(f"{floats:>12} {count:>8} {columns} {ratios}", flush=True)


if __name__ == "__main__":
    main()
