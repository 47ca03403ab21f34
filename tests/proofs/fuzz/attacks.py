"""Ways to send wrong bytes. Each attack sends about as many as it is asked for."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from holdfast.coordination.embedded import protocol
from tests.proofs import wire
from tests.proofs.fuzz import frames
from tests.proofs.fuzz.guard import Harmed

QUIET_S = 0.25
ANSWER_S = 60.0
OPEN_AT_ONCE = 12
# How the server answered introductions; replies to requests are counted by their error code.
WELCOMED, REFUSED = "session opened", "session refused"


@dataclass
class Tally:
    """What was sent and what came back."""

    bytes: int = 0
    connections: int = 0
    closed_by_server: int = 0
    replies: Counter[int | str] = field(default_factory=Counter)


@dataclass
class Target:
    """Where to send, what to draw from, what to count."""

    port: int
    draw: random.Random
    tally: Tally


class Caller:
    """One connection of an attack."""

    def __init__(
        self, target: Target, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.tally = target.tally
        self.reader = reader
        self.writer = writer
        self.introduced = False

    @classmethod
    async def open(cls, target: Target) -> Caller:
        reader, writer = await asyncio.open_connection("127.0.0.1", target.port)
        target.tally.connections += 1
        return cls(target, reader, writer)

    async def send(self, data: bytes) -> None:
        """Send; a server that has closed the connection meanwhile is within its rights."""
        if self.writer.is_closing() or self.reader.at_eof():
            return
        self.tally.bytes += len(data)
        self.writer.write(data)
        with contextlib.suppress(ConnectionError, asyncio.TimeoutError):
            await asyncio.wait_for(self.writer.drain(), 5)

    async def introduce(self) -> None:
        """Open a session, which every client must be able to do at any time."""
        await self.send(wire.frame(frames.handshake()))
        try:
            self._count(await asyncio.wait_for(self._frame(), ANSWER_S))
        except (TimeoutError, ConnectionError, asyncio.IncompleteReadError) as error:
            raise Harmed(f"a good introduction was not answered: {error!r}") from error

    async def _frame(self) -> bytes:
        size = int.from_bytes(await self.reader.readexactly(4), "big")
        return await self.reader.readexactly(size)

    def _count(self, answer: bytes) -> None:
        if self.introduced:
            self.tally.replies[int.from_bytes(answer[12:16], "big", signed=True)] += 1
            return
        self.introduced = True
        self.tally.replies[WELCOMED if any(answer[4:8]) else REFUSED] += 1

    async def listen(self, most: int = 1_000_000) -> None:
        """Count replies until the server closes or nothing more comes."""
        with contextlib.suppress(asyncio.TimeoutError):
            try:
                for _ in range(most):
                    self._count(await asyncio.wait_for(self._frame(), QUIET_S))
            except (ConnectionError, asyncio.IncompleteReadError):
                self.tally.closed_by_server += 1

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError, asyncio.TimeoutError):
            await asyncio.wait_for(self.writer.wait_closed(), 5)


Conversation = Callable[[Caller, random.Random], Awaitable[None]]


async def _many(target: Target, size: int, talk: Conversation) -> None:
    """Hold conversations, some at the same time, until `size` bytes are sent."""
    until = target.tally.bytes + size

    async def one_after_another(draw: random.Random) -> None:
        while target.tally.bytes < until:
            caller = await Caller.open(target)
            try:
                await talk(caller, draw)
            finally:
                await caller.close()

    seeds = [target.draw.getrandbits(64) for _ in range(OPEN_AT_ONCE)]
    await asyncio.gather(*(one_after_another(random.Random(seed)) for seed in seeds))


async def _noise(caller: Caller, draw: random.Random) -> None:
    await caller.send(draw.randbytes(draw.choice((1, 3, 4, 5, 60, 4_000, 60_000))))
    await caller.listen()


async def _framed_noise(caller: Caller, draw: random.Random) -> None:
    """Good frames around random bytes, with and without an introduction."""
    if draw.random() < 0.8:
        await caller.introduce()
    for _ in range(20):
        await caller.send(wire.frame(draw.randbytes(draw.randrange(200))))
    await caller.listen()


async def _mutated_handshake(caller: Caller, draw: random.Random) -> None:
    hello = frames.mutated(draw, frames.handshake())
    await caller.send(
        wire.frame(hello) if draw.random() < 0.7 else frames.framed_wrong(draw, hello)
    )
    await caller.listen(2)


async def _mutated(caller: Caller, draw: random.Random) -> None:
    """A good introduction, then mutations of good requests; at last a frame with a wrong length."""
    await caller.introduce()
    for _ in range(6):
        batch = []
        for xid in range(1, 60):
            payload = frames.valid(draw, xid)
            batch.append(wire.frame(frames.mutated(draw, payload) if xid % 3 else payload))
        await caller.send(b"".join(batch))
    await caller.send(frames.framed_wrong(draw, frames.valid(draw, 1)))
    await caller.listen()


async def _wrong(caller: Caller, draw: random.Random) -> None:
    await caller.introduce()
    for start in range(1, 60, 10):
        batch = [wire.frame(frames.wrong(draw, xid)) for xid in range(start, start + 10)]
        await caller.send(b"".join(batch))
        await asyncio.sleep(0.001)
    await caller.listen()


async def _byte_by_byte(caller: Caller, draw: random.Random) -> None:
    """Good requests, each byte in a packet of its own; then one more, cut in the middle."""
    await caller.introduce()
    for xid in range(1, 8):
        for byte in wire.frame(frames.valid(draw, xid)):
            await caller.send(bytes([byte]))
            await asyncio.sleep(0)
    last = wire.frame(frames.valid(draw, 9))
    await caller.send(last[: draw.randrange(len(last))])
    await caller.listen()


async def _split_everywhere(caller: Caller, draw: random.Random) -> None:
    """Two good requests as one stream, cut in two at every place in turn."""
    await caller.introduce()
    stream = wire.frame(frames.valid(draw, 1)) + wire.frame(frames.valid(draw, 2))
    for at in range(1, len(stream)):
        await caller.send(stream[:at])
        await asyncio.sleep(0)
        await caller.send(stream[at:])
    await caller.listen()


async def _flood(caller: Caller, draw: random.Random) -> None:
    """Thousands of requests whose replies are never read."""
    await caller.introduce()
    body = wire.read_body("/control")
    ask = wire.request_frame(1, protocol.GET_CHILDREN2, body)
    await caller.send(ask * 3_000)
    await caller.send(b"".join(wire.frame(frames.valid(draw, xid)) for xid in range(300)))


async def _slow(caller: Caller, draw: random.Random) -> None:
    """A frame that never ends, one byte now and then."""
    if draw.random() < 0.5:
        await caller.introduce()
    await caller.send(wire.integer(draw.choice((5_000, 0xFFFFE))))
    for _ in range(10):
        await caller.send(draw.randbytes(draw.randrange(1, 300)))
        await asyncio.sleep(0.01)


ATTACKS: dict[str, Conversation] = {
    "noise": _noise,
    "framed noise": _framed_noise,
    "mutated handshakes": _mutated_handshake,
    "mutated requests": _mutated,
    "wrong requests": _wrong,
    "byte by byte": _byte_by_byte,
    "split everywhere": _split_everywhere,
    "floods without reading": _flood,
    "slow and endless": _slow,
}
# Bytes in one batch: much where a byte is cheap, less where each costs a packet or a session.
BATCH_BYTES: dict[str, int] = {
    "noise": 300_000,
    "framed noise": 100_000,
    "mutated handshakes": 30_000,
    "mutated requests": 400_000,
    "wrong requests": 400_000,
    "byte by byte": 30_000,
    "split everywhere": 200_000,
    "floods without reading": 300_000,
    "slow and endless": 50_000,
}


async def attack(target: Target, name: str, size: int) -> None:
    await _many(target, size, ATTACKS[name])
