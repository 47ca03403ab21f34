"""Hosts without namespaces: addresses of the loopback, and a relay from each host to the plane.

All that can be cut here is the way to the coordination plane: each host has addresses of its own
for the servers, behind which a relay passes bytes on. A cut relay passes nothing; connections stay
open, and what was sent arrives when it is healed, as on a line that was away for a while.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from tests.servers import free_port

READY_S: Final = 30.0
_CHUNK_BYTES: Final = 65_536


class Relay:
    """From one host to one server. It has two gates: what goes there, and what comes back."""

    def __init__(self, host: str, target: tuple[str, int]) -> None:
        self.host, self.port = host, free_port()
        self._target = target
        self.there = asyncio.Event()
        self.back = asyncio.Event()
        self.there.set()
        self.back.set()

    async def start(self) -> asyncio.Server:
        return await asyncio.start_server(self._accept, self.host, self.port)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends = [writer]
        with suppress(OSError, asyncio.CancelledError):
            await self.there.wait()
            far_reader, far_writer = await asyncio.open_connection(*self._target)
            ends.append(far_writer)
            pumps = [
                asyncio.ensure_future(_pump(reader, far_writer, self.there)),
                asyncio.ensure_future(_pump(far_reader, writer, self.back)),
            ]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
        for end in ends:
            end.transport.abort()


async def _pump(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gate: asyncio.Event
) -> None:
    """Until one side hangs up. A closed gate lets the end pass no more than the bytes."""
    with suppress(OSError):
        while True:
            data = await reader.read(_CHUNK_BYTES)
            await gate.wait()
            if not data:
                return
            writer.write(data)
            await writer.drain()


class Loopback:
    """Every host is an address in 127.0.0.0/8. Relays run in a thread of this process."""

    links = False

    def __init__(self, hosts: Sequence[str]) -> None:
        self._hosts = list(hosts)
        self._relays: dict[tuple[str, str], Relay] = {}  # host, server
        self._cuts: Counter[tuple[str, str]] = Counter()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def enter(self) -> None:
        """There is nothing to enter."""

    def address(self, host: str) -> str:
        return f"127.0.77.{self._hosts.index(host) + 1}"

    def plane(self, host: str, servers: Sequence[tuple[str, int]]) -> str:
        found = []
        for server, port in servers:
            relay = self._relays.get((host, server))
            if relay is None:
                relay = Relay(self.address(host), (self.address(server), port))
                self._relays[host, server] = relay
                asyncio.run_coroutine_threadsafe(relay.start(), self._loop).result(READY_S)
            found.append(f"{relay.host}:{relay.port}")
        return ",".join(found)

    def within(self, _host: str) -> list[str]:
        return []

    def cut(self, sender: str, receiver: str) -> None:
        self._cuts[sender, receiver] += 1
        self._set(sender, receiver)

    def heal(self, sender: str, receiver: str) -> None:
        self._cuts[sender, receiver] -= 1
        self._set(sender, receiver)

    def _set(self, sender: str, receiver: str) -> None:
        there, back = self._relays.get((sender, receiver)), self._relays.get((receiver, sender))
        gates = [relay.there for relay in (there,) if relay] + [r.back for r in (back,) if r]
        if not gates:
            raise ValueError(f"without namespaces nothing is cut from {sender} to {receiver}")
        for gate in gates:
            act = gate.clear if self._cuts[sender, receiver] else gate.set
            self._loop.call_soon_threadsafe(act)

    def slow(self, host: str, _rate: str) -> None:
        raise ValueError(f"without namespaces the link of {host} cannot be slowed")

    def quicken(self, host: str) -> None:
        raise ValueError(f"without namespaces the link of {host} was not slowed")

    def close(self) -> None:
        async def end() -> None:
            for task in asyncio.all_tasks():
                if task is not asyncio.current_task():
                    task.cancel()
            await asyncio.sleep(0)

        with suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(end(), self._loop).result(READY_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(READY_S)
