"""HTTP/2 by hand, for tests that need their bytes in frames of their own choosing."""

from __future__ import annotations

import socket
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _SETTINGS, _PING = 0, 1, 4, 6
_END_STREAM, _ACK, _END_HEADERS = 1, 1, 4


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    head = len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big")
    return head + payload


def settings() -> bytes:
    return frame(_SETTINGS, 0, 0)


def headers(stream: int, path: str, **more: str) -> bytes:
    """A call's headers, each as a literal that is not remembered."""
    pairs = {
        ":method": "POST",
        ":scheme": "http",
        ":path": path,
        ":authority": "test",
        "content-type": "application/grpc",
        "te": "trailers",
        **{name.replace("_", "-"): text for name, text in more.items()},
    }
    block = b"".join(b"\x00" + _text(name) + _text(text) for name, text in pairs.items())
    return frame(_HEADERS, _END_HEADERS, stream, block)


def data(stream: int, piece: bytes, *, ended: bool = False) -> bytes:
    return frame(_DATA, _END_STREAM if ended else 0, stream, piece)


def answered(link: socket.socket, stream: int) -> bytes:
    """The message of a call's answer, when it has ended."""
    found = b""
    with link.makefile("rb") as reading:
        while True:
            head = reading.read(9)
            assert len(head) == 9, "the connection ended before the answer"
            payload = reading.read(int.from_bytes(head[:3], "big"))
            kind, flags = head[3], head[4]
            if int.from_bytes(head[5:], "big") != stream:
                continue
            if kind == _DATA:
                found += payload
            if kind in (_DATA, _HEADERS) and flags & _END_STREAM:
                return found[5:]


def _text(text: str) -> bytes:
    raw = text.encode()
    assert len(raw) < 127
    return bytes([len(raw)]) + raw
