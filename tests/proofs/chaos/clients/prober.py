"""`python -m tests.proofs.chaos.clients.prober`: which replicas answer from a gateway's host.

It asks each replica for its health, again and again, on a connection of its own, and writes down
what it saw and when. Where the replicas are it reads from a file that others keep.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from tests.proofs.chaos.clients.records import Record

EVERY_S: Final = 0.25
# As long as the gateway's own checks wait.
PATIENCE_S: Final = 1.0
_ASK: Final = b"GET /v2/health/ready HTTP/1.1\r\nhost: probe\r\nconnection: close\r\n\r\n"


async def healthy(host: str, port: int) -> bool:
    """Whether it says so in time."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(_ASK)
                await writer.drain()
                return b" 200 " in await reader.readline()
            finally:
                writer.transport.abort()
    except (OSError, TimeoutError):
        return False


async def watch(worker: int, host: str, port: int, record: Record, gateway: str) -> None:
    while True:
        began_s = time.time()
        well = await healthy(host, port)
        told = {"began_s": began_s, "ended_s": time.time(), "worker": worker, "well": well}
        record.write(**told, gateway=gateway)
        await asyncio.sleep(max(0.02, began_s + EVERY_S - time.time()))


def places(where: Path) -> set[tuple[int, str, int]]:
    """Where the replicas are; nowhere, as long as nobody has said so."""
    try:
        found = json.loads(where.read_text())
    except FileNotFoundError:
        return set()
    return {(int(worker), str(host), int(port)) for worker, host, port in found}


async def run(where: Path, record: Record, gateway: str) -> None:
    """Until it is told to end."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    tasks: dict[tuple[int, str, int], asyncio.Task[None]] = {}
    while not stop.is_set():
        wanted = places(where)
        for gone in tasks.keys() - wanted:
            tasks.pop(gone).cancel()
        for new in wanted - tasks.keys():
            tasks[new] = asyncio.create_task(watch(*new, record, gateway))
        with suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), EVERY_S)
    for task in tasks.values():
        task.cancel()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--where", type=Path, required=True, help="a file: [[worker, host, port]]")
    parser.add_argument("--gateway", required=True, help="whose host this is")
    parser.add_argument("--record", type=Path, required=True)
    given = parser.parse_args()
    asyncio.run(run(given.where, Record(given.record), given.gateway))


if __name__ == "__main__":
    main()
