"""`python -m bench.scale.listeners [--json]`: one member's part of a very large meeting.

The member is real: its listener, its meeting. Its peers are pretended by one other process, which
says what they would say. Measured is the member's processor time: once as the one with the highest
number, which calls all others, and once as the lowest, which all others call.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import struct
import time
from multiprocessing.connection import Connection
from typing import Any

from holdfast.system.job_credentials import Credentials
from holdfast.train.members.greeting import Epoch, Hello
from holdfast.train.members.listener import PeerListener
from holdfast.train.members.meeting import Meeting
from holdfast.train.members.wakeup import Wakeup
from holdfast.wire import handshake
from holdfast.wire.handshake import Called, Calling, Purpose, derived

SIZES = (250, 1_000, 2_000)
JOB = "bench"
EPOCH = Epoch(1, 0)
_HEAD = struct.Struct("<4sHI")
_PATIENCE_S = 100.0
_CREDENTIALS = Credentials(JOB, b"benchmarks keep no secret......!")
_KEY = derived(_CREDENTIALS.secret, "handshake")


def _frame(hello: Hello) -> bytes:
    data = json.dumps(hello.body(), separators=(",", ":")).encode()
    return _HEAD.pack(b"HFm\n", 1, len(data)) + data


async def _read_hello(reader: asyncio.StreamReader) -> Hello:
    _, _, size = _HEAD.unpack(await reader.readexactly(_HEAD.size))
    return Hello.of(json.loads(await reader.readexactly(size)))


async def _answering(line: Connection) -> None:
    """All lower members: one port, where each answers the call that is for it."""
    kept = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        kept.append(writer)
        opening = await reader.readexactly(handshake.OPENING_BYTES)
        to = int.from_bytes(opening[14:22], "little")
        called = Called(_KEY, JOB, Purpose.MESH, to, os.urandom(handshake.NONCE_BYTES))
        writer.write(called.answer(opening))
        called.caller(await reader.readexactly(handshake.PROOF_BYTES))
        hello = await _read_hello(reader)
        writer.write(_frame(Hello("meet", JOB, hello.to, hello.worker, EPOCH, 0)))

    server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=4_096)
    line.send("{}:{}".format(*server.sockets[0].getsockname()[:2]))
    await asyncio.to_thread(line.recv)


async def _calling(line: Connection, members: int) -> None:
    """All higher members call the lowest one."""
    line.send("")
    host, port = (await asyncio.to_thread(line.recv)).rsplit(":", 1)

    async def call(worker: int) -> asyncio.StreamWriter:
        reader, writer = await asyncio.open_connection(host, int(port))
        nonce = os.urandom(handshake.NONCE_BYTES)
        calling = Calling(_KEY, JOB, Purpose.MESH, worker, 0, nonce)
        writer.write(calling.opening)
        writer.write(calling.prove(await reader.readexactly(handshake.ANSWER_BYTES)))
        writer.write(_frame(Hello("meet", JOB, worker, 0, EPOCH, 0)))
        await _read_hello(reader)
        return writer

    kept = await asyncio.gather(*(call(worker) for worker in range(1, members)))
    await asyncio.to_thread(line.recv)
    assert kept


def _others(calls: bool, members: int, line: Connection) -> None:
    asyncio.run(_calling(line, members) if calls else _answering(line))


def measure(members: int, *, highest: bool) -> float:
    """The member's processor time, in milliseconds."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    other = context.Process(target=_others, args=(not highest, members, theirs))
    other.start()
    wakeup = Wakeup()
    worker = members - 1 if highest else 0
    listener = PeerListener(_CREDENTIALS, worker, "127.0.0.1", 0, wakeup)
    peers = [peer for peer in range(members) if peer != worker]
    addresses = dict.fromkeys(peers, ours.recv())
    begun_cpu_s, limit_s = time.process_time(), time.monotonic() + _PATIENCE_S
    mine = Hello("meet", JOB, worker, -1, EPOCH, 0)
    meeting = Meeting(listener, wakeup, mine, addresses, peers)
    if not highest:
        listener.begin(mine)
        ours.send("{}:{}".format(*listener.address))
    if not meeting.run(lambda: time.monotonic() > limit_s, lambda _suspects: None):
        raise SystemExit(f"{members} members did not meet")
    used_ms = 1_000 * (time.process_time() - begun_cpu_s)
    ours.send(None)
    other.join(_PATIENCE_S)
    for sock in meeting.sockets.values():
        sock.close()
    listener.close()
    return used_ms


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="JSON instead of a table")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="numbers of members")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for members in options.sizes:
        rows.append(
            {
                "members": members,
                "calls_all_cpu_ms": round(measure(members, highest=True), 1),
                "called_by_all_cpu_ms": round(measure(members, highest=False), 1),
            }
        )
        if not options.json:
            print(rows[-1], flush=True)
    if options.json:
        print(json.dumps({"listeners": rows}, indent=2))


if __name__ == "__main__":
    main()
