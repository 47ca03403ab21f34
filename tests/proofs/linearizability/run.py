"""Servers, clients, kills, and the verdict."""

from __future__ import annotations

import random
import shutil
import threading
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from tests.proofs.linearizability import by_zxid
from tests.proofs.linearizability.clients import Client, make_registers
from tests.proofs.linearizability.history import Operation
from tests.servers import ServerProcess
from tests.waiting import eventually

KEYS = 3
JOIN_S = 150.0
# Far more than a few hundred operations take on the slowest machine.
PROGRESS_S = 120.0


class Verdict(NamedTuple):
    """What a run came to: no problems, and the history is linearizable."""

    history: list[Operation]
    kills: int
    problems: list[str]

    def summary(self) -> str:
        outcomes = Counter(f"{op.kind} {op.outcome}" for op in self.history)
        counts = ", ".join(f"{count} {what}" for what, count in sorted(outcomes.items()))
        return f"{len(self.history)} operations ({counts}), {self.kills} kills of the server"


def watch_registers(
    server: ServerProcess,
    *,
    seconds: float,
    seed: int,
    clients: int,
    operations: int = 0,
    kills: bool = False,
    forget: bool = False,
    port: int | None = None,
) -> Verdict:
    """Let clients work on the registers of a running server, and check what they were told.

    They work for so many seconds and until there are so many operations. With `kills` the server
    is killed with SIGKILL and started again at random moments. With `forget` its folder is also
    put back to an earlier state, as by a disk that never kept what it was told to keep. `port` is
    where clients go, if there is something between.
    """
    port = port or server.port
    history = make_registers(port, KEYS)
    keys = [op.key for op in history]
    stop = threading.Event()
    workers = [Client(number, port, keys, seed, stop) for number in range(clients)]
    for worker in workers:
        worker.start()
    killed = 0
    progress = _Progress(workers)
    try:
        if kills or forget:
            killed = _kill(server, random.Random(seed), seconds, progress, forget)
        else:
            time.sleep(seconds)  # pause: clients work so long
        progress.wait_for(operations - progress.count())
    finally:
        stop.set()
        for worker in workers:
            worker.join(JOIN_S)
    for worker in workers:
        assert not worker.is_alive(), f"{worker.name} hangs"
        progress.raise_failures()
        history += worker.history
    return Verdict(history, killed, by_zxid.check(history))


class _Progress:
    """How far the clients have come, together."""

    def __init__(self, workers: list[Client]) -> None:
        self.workers = workers

    def count(self) -> int:
        return sum(len(worker.history) for worker in self.workers)

    def raise_failures(self) -> None:
        for worker in self.workers:
            if worker.failure is not None:
                raise RuntimeError(f"{worker.name} failed") from worker.failure

    def wait_for(self, more: int) -> None:
        """Wait until so many more operations are done."""
        wanted = self.count() + more

        def done() -> bool:
            self.raise_failures()
            return self.count() >= wanted

        eventually(done, f"{more} operations more are done", PROGRESS_S)


def _kill(
    server: ServerProcess,
    source: random.Random,
    seconds: float,
    progress: _Progress,
    forget: bool,
) -> int:
    """Kill the server at random moments and start it again, at least once. Returns how often."""
    deadline = time.monotonic() + seconds
    killed = 0
    while killed == 0 or time.monotonic() < deadline:
        time.sleep(source.uniform(0.0, 0.5))  # pause: the kill comes at any moment
        if forget:
            _copy_paused(server)
        progress.wait_for(source.randint(20, 200))
        server.kill()
        killed += 1
        if forget:
            _put_back(server)
        server.start()
        progress.wait_for(source.randint(20, 200))
    return killed


def _earlier(server: ServerProcess) -> Path:
    return server.folder / "earlier"


def _copy_paused(server: ServerProcess) -> None:
    server.pause()
    try:
        shutil.rmtree(_earlier(server), ignore_errors=True)
        shutil.copytree(server.folder / "data", _earlier(server))
    finally:
        server.resume()


def _put_back(server: ServerProcess) -> None:
    shutil.rmtree(server.folder / "data")
    _earlier(server).rename(server.folder / "data")
