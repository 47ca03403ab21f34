"""HTTP/1.1 for a load generator: the bytes of a request, and replies cut out of a stream."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

_LENGTH: Final = re.compile(rb"\r\ncontent-length:[ \t]*(\d+)", re.IGNORECASE)
_CHUNKED: Final = re.compile(rb"\r\ntransfer-encoding:[ \t]*chunked", re.IGNORECASE)
_CLOSE: Final = re.compile(rb"\r\nconnection:[ \t]*close", re.IGNORECASE)
_VERSION: Final = re.compile(rb"\r\nx-holdfast-version:[ \t]*([^\r]*)", re.IGNORECASE)
_HEAD_BYTES_MAX: Final = 64 * 1024


class Garbled(Exception):
    """What came is not HTTP."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer. `head`: status line and headers as they came, without the empty line."""

    status: int
    head: bytes
    body: bytes
    version: str  # of `x-holdfast-version`; empty: it was not there
    shot: int = 0  # which of the generator's requests it answers

    @property
    def closes(self) -> bool:
        return _CLOSE.search(self.head) is not None

    def header(self, name: str) -> str:
        """A header's value; empty: it is not there."""
        found = re.search(
            rb"\r\n" + re.escape(name.encode()) + rb":[ \t]*([^\r]*)", self.head, re.IGNORECASE
        )
        return found[1].decode("latin-1").strip() if found else ""


# What is wrong with a reply; empty: nothing.
Check = Callable[[Reply], str]


def anything(reply: Reply) -> str:
    """The check that looks only at the status."""
    return "" if 200 <= reply.status < 300 else f"status {reply.status}: {reply.body[:120]!r}"


@dataclass(frozen=True, slots=True)
class Shot:
    """A request that is sent again and again."""

    path: str
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    method: str = "POST"

    def raw(self, host: str) -> bytes:
        given = {"content-type": "application/json", **self.headers}
        lines = [f"{self.method} {self.path} HTTP/1.1", f"host: {host}"]
        lines += [f"{name}: {value}" for name, value in given.items()]
        lines.append(f"content-length: {len(self.body)}")
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + self.body


def take(stream: bytearray, shot: int) -> Reply | None:
    """The first whole reply of the stream, cut out of it; None: not all of it is there."""
    end = stream.find(b"\r\n\r\n")
    if end < 0:
        if len(stream) > _HEAD_BYTES_MAX:
            raise Garbled(f"no end of the headers in {len(stream)} bytes")
        return None
    if not stream.startswith(b"HTTP/1."):
        raise Garbled(f"not a status line: {bytes(stream[:60])!r}")
    head = bytes(stream[:end])
    length = _LENGTH.search(head)
    if length:
        last = end + 4 + int(length[1])
        if len(stream) < last:
            return None
        body = bytes(stream[end + 4 : last])
    elif _CHUNKED.search(head):
        chunks = _chunks(stream, end + 4)
        if chunks is None:
            return None
        body, last = chunks
    else:
        body, last = b"", end + 4
    del stream[:last]
    version = _VERSION.search(head)
    return Reply(int(head[9:12]), head, body, version[1].decode().strip() if version else "", shot)


def _chunks(stream: bytearray, at: int) -> tuple[bytes, int] | None:
    """The body that begins there, and where it ends; None: not all of it is there."""
    body = bytearray()
    while True:
        line = stream.find(b"\r\n", at)
        if line < 0:
            return None
        size = int(stream[at:line].split(b";")[0], 16)
        if len(stream) < line + 4 + size:
            return None
        body += stream[line + 2 : line + 2 + size]
        at = line + 4 + size
        if size == 0:
            return bytes(body), at
