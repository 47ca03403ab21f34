"""Answers as bytes of HTTP/1.1. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus
from typing import Final

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
CLOSE: Final = b"connection: close\r\n"
KEEP: Final = b"connection: keep-alive\r\n"  # for those who would not expect it

_REASONS: Final = {status.value: status.phrase for status in HTTPStatus}


def head_of(status: int, headers: Iterable[tuple[str, str]]) -> bytes:
    """The status line and the headers, without those that the connection adds, and without the
    empty line. A value that cannot stand in a header is left out with its name."""
    lines = [f"HTTP/1.1 {status} {_REASONS.get(status, 'Unknown')}"]
    lines += [f"{name}: {value}" for name, value in headers if value.isprintable()]
    return "\r\n".join([*lines, ""]).encode("latin-1", "replace")


def whole(head: bytes, more: bytes, body: bytes, *, bodiless: bool) -> bytes:
    """An answer in one piece. `bodiless`: it describes its body, and has none (to `HEAD`)."""
    if bodiless:
        return b"%b%bcontent-length: %d\r\n\r\n" % (head, more, len(body))
    return b"%b%bcontent-length: %d\r\n\r\n%b" % (head, more, len(body), body)
