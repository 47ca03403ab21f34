"""A TCP proxy whose connections can be cut, or go silent, at any byte."""

from __future__ import annotations

import asyncio
import contextlib


class TcpProxy:
    """In front of `address`; lives in the loop that started it."""

    def __init__(self, address: str) -> None:
        self._host, _, self._port = address.rpartition(":")
        self._links: set[asyncio.Task[None]] = set()
        self._passing = asyncio.Event()
        self._passing.set()
        self._server: asyncio.Server | None = None
        self.bytes_passed = 0
        self.cut_after: int | None = None  # cut everything at this many more bytes
        self.cuts = 0
        self.address = ""

    async def __aenter__(self) -> TcpProxy:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()

    def cut(self) -> None:
        """End every connection now."""
        self.cuts += 1
        for link in tuple(self._links):
            link.cancel()

    def go_silent(self) -> None:
        """Connections stay open, and nothing passes."""
        self._passing.clear()

    def pass_again(self) -> None:
        self._passing.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._links.add(task)
        ends = [writer]
        try:
            up_reader, up_writer = await asyncio.open_connection(self._host, int(self._port))
            ends.append(up_writer)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump(reader, up_writer))
                group.create_task(self._pump(up_reader, writer))
        except (OSError, ExceptionGroup, asyncio.CancelledError):
            pass  # one side is gone, or we were told to cut: both ends are closed below
        finally:
            self._links.discard(task)
            for end in ends:
                end.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1_000):
            await self._passing.wait()
            self.bytes_passed += len(data)
            if self.cut_after is not None:
                self.cut_after -= len(data)
                if self.cut_after <= 0:
                    self.cut_after = None
                    writer.write(data[: len(data) // 2])  # in the middle of a frame
                    with contextlib.suppress(OSError):
                        await writer.drain()
                    self.cut()
                    raise ConnectionResetError("cut")
            writer.write(data)
            await writer.drain()
        raise ConnectionResetError("one side has hung up")
