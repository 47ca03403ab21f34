"""`python -m bench.scale.meeting [--json]`: what a view of N members costs each of them.

N processes, forked from one, on this machine: each has a listener, meets all others in a view, and
then exchanges with all of them, as a step's sum does: 4 MB in as many chunks as there are members.
Measured, for one member: processor time of a meeting and of an exchange (the mean over members),
and the clock's time, in which all N shared the cores of this machine.

With the processor time of an exchange at several N the cost of a message and that of a byte are
told apart: `cpu = peers * a + bytes * b`. `--chunk-kb` gives chunks of one size instead, as the
buckets of a job with many lanes have them.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import time
from multiprocessing.connection import Connection
from typing import Any

from holdfast.system.job_credentials import Credentials
from holdfast.train.members.greeting import Epoch, Hello
from holdfast.train.members.listener import PeerListener
from holdfast.train.members.meeting import Meeting
from holdfast.train.members.mesh import Mesh, tune
from holdfast.train.members.wakeup import Wakeup

SIZES = (8, 16, 32, 64, 128)
ROUNDS = 6
BUCKET_BYTES = 4 * 1024 * 1024
TAG = 21
_PATIENCE_S = 90.0
_CREDENTIALS = Credentials("bench", b"benchmarks keep no secret......!")


def _member(worker: int, members: int, chunk_bytes: int, line: Connection) -> None:
    wakeup = Wakeup()
    listener = PeerListener(_CREDENTIALS, worker, "127.0.0.1", 0, wakeup)
    line.send("{}:{}".format(*listener.address))
    addresses: dict[int, str] = line.recv()
    peers = [peer for peer in range(members) if peer != worker]
    begun_s, begun_cpu_s = time.monotonic(), time.process_time()
    mine = Hello("meet", "bench", worker, -1, Epoch(1, 0), 0)
    meeting = Meeting(listener, wakeup, mine, addresses, peers)
    limit_s = begun_s + _PATIENCE_S
    if not meeting.run(lambda: time.monotonic() > limit_s, lambda _suspects: None):
        raise SystemExit(f"worker {worker} did not meet all others")
    sockets = {peer: tune(sock) for peer, sock in meeting.sockets.items()}
    mesh = Mesh(worker, 1, 0, sockets)
    listener.met(mesh.close)
    met = (time.monotonic() - begun_s, time.process_time() - begun_cpu_s)
    line.send(met)
    line.recv()
    chunk = bytes(chunk_bytes or BUCKET_BYTES // members)
    room = {peer: bytearray(len(chunk)) for peer in peers}
    _exchange(mesh, peers, chunk, room)
    begun_s, begun_cpu_s = time.monotonic(), time.process_time()
    for _ in range(ROUNDS):
        _exchange(mesh, peers, chunk, room)
    took_s, used_s = time.monotonic() - begun_s, time.process_time() - begun_cpu_s
    line.send((took_s / ROUNDS, used_s / ROUNDS))
    line.recv()
    mesh.close()
    listener.close()


def _exchange(mesh: Mesh, peers: list[int], chunk: bytes, room: dict[int, bytearray]) -> None:
    mesh.exchange(
        {peer: [chunk] for peer in peers}, {peer: [room[peer]] for peer in peers}, tag=TAG
    )


def _child(worker: int, members: int, chunk_bytes: int, line: Connection) -> None:
    """Forked: what it inherits it does not need."""
    try:
        _member(worker, members, chunk_bytes, line)
    finally:
        os._exit(0)


def measure(members: int, chunk_bytes: int) -> dict[str, Any]:
    context = multiprocessing.get_context("fork")
    lines, children = [], []
    for worker in range(members):
        ours, theirs = context.Pipe()
        child = context.Process(target=_child, args=(worker, members, chunk_bytes, theirs))
        child.start()
        theirs.close()
        lines.append(ours)
        children.append(child)
    addresses = dict(enumerate(line.recv() for line in lines))
    met = _round(lines, addresses)
    exchanged = _round(lines, None)
    _tell(lines, None)
    for child in children:
        child.join(_PATIENCE_S)
    return {
        "members": members,
        "meeting_cpu_ms": round(1e3 * statistics.mean(cpu for _, cpu in met), 2),
        "meeting_cpu_ms_most": round(1e3 * max(cpu for _, cpu in met), 2),
        "meeting_clock_ms": round(1e3 * max(took for took, _ in met), 1),
        "exchange_cpu_ms": round(1e3 * statistics.mean(cpu for _, cpu in exchanged), 2),
        "exchange_clock_ms": round(1e3 * statistics.mean(took for took, _ in exchanged), 1),
    }


def _tell(lines: list[Connection], word: Any) -> None:
    for line in lines:
        line.send(word)


def _round(lines: list[Connection], word: Any) -> list[tuple[float, float]]:
    _tell(lines, word)
    return [line.recv() for line in lines]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="JSON instead of a table")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="numbers of members")
    parser.add_argument("--chunk-kb", type=int, default=0, help="of each chunk (default: 4 MB / N)")
    options = parser.parse_args()
    rows = []
    for members in options.sizes:
        rows.append(measure(members, options.chunk_kb * 1024))
        if not options.json:
            print(rows[-1], flush=True)
    if options.json:
        print(json.dumps({"meeting": rows}, indent=2))


if __name__ == "__main__":
    main()
