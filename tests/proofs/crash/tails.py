"""Torn tails: what a crash may leave behind the part of the log that was made durable.

A machine that loses power while the log is written may keep any part of the last, unfinished
write, and the disk may hold anything where it was to go. Everything up to the durable mark was
synced and perhaps acknowledged; to change that would be damage, not a torn tail. So only bytes
behind the mark are touched here. If the server ever acknowledged something that is not covered
by the mark, it is lost here, and the checks see it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from holdfast.coordination.embedded.folder import list_folder
from holdfast.coordination.embedded.log import read_mark

GARBAGE_BYTES_MAX = 6_000


class Tail(NamedTuple):
    """The last segment of a dead server's log."""

    path: Path
    data: bytes
    durable: int  # length of the part that was synced
    written: int  # length with what was written behind it, without the room written ahead


def find_tail(folder: Path) -> Tail | None:
    """The tail of a data folder; None while there is none, or a new segment has just begun."""
    segments = list_folder(folder).segments if folder.exists() else []
    mark = read_mark(folder)[0] if segments else None
    if mark is None or segments[-1][0] != mark.first_zxid:
        return None
    path = segments[-1][1]
    data = path.read_bytes()
    return Tail(path, data, mark.length, max(mark.length, len(data.rstrip(b"\0"))))


def _cut(tail: Tail, draw: random.Random) -> bytes:
    """The file ends somewhere in the last write, or in the room ahead."""
    return tail.data[: draw.randint(tail.durable, draw.choice((tail.written, len(tail.data))))]


def _garbage(tail: Tail, draw: random.Random) -> bytes:
    """Random bytes where the last write was to go."""
    return tail.data[: tail.durable] + draw.randbytes(draw.randint(1, GARBAGE_BYTES_MAX))


def _garbage_ahead(tail: Tail, draw: random.Random) -> bytes:
    """Random bytes somewhere in the room ahead, zeros before and after them."""
    gap = bytes(draw.randint(0, GARBAGE_BYTES_MAX))
    junk = draw.randbytes(draw.randint(1, GARBAGE_BYTES_MAX))
    return tail.data[: tail.written] + gap + junk + bytes(draw.randint(0, GARBAGE_BYTES_MAX))


def _zeros(tail: Tail, draw: random.Random) -> bytes:
    """The last write lost its end: the file is as long, and holds zeros there."""
    start = draw.randint(tail.durable, tail.written)
    return tail.data[:start] + bytes(len(tail.data) - start)


def _old_bytes(tail: Tail, draw: random.Random) -> bytes:
    """A piece of the log's own past, as an old block may hold it."""
    start = draw.randrange(tail.durable)
    piece = tail.data[start : draw.randint(start + 1, tail.durable)]
    return tail.data[: tail.durable] + piece


def _flipped(tail: Tail, draw: random.Random) -> bytes:
    """One bit of the last, unfinished write is wrong."""
    if tail.written == tail.durable:
        return _garbage(tail, draw)
    data = bytearray(tail.data)
    data[draw.randrange(tail.durable, tail.written)] ^= 1 << draw.randrange(8)
    return bytes(data)


TEARS: tuple[Callable[[Tail, random.Random], bytes], ...] = (
    _cut,
    _garbage,
    _garbage_ahead,
    _zeros,
    _old_bytes,
    _flipped,
)


def tear(folder: Path, draw: random.Random) -> str:
    """Tear the log's tail; the name of what was done, empty if there was no tail."""
    tail = find_tail(folder)
    if tail is None:
        return ""
    how = draw.choice(TEARS)
    tail.path.write_bytes(how(tail, draw))
    return how.__name__.lstrip("_")
