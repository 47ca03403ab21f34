"""Bodies that came packed, and answers that are wanted so: gzip and deflate. Pure.

Nothing is unpacked beyond the limit of a body: what would be larger is refused when it gets there.
An answer is packed for whoever asks for one of the two alone. Clients that name all they could read
(`gzip, deflate, br`) have not asked for it: packing costs more than it saves within a cluster.
"""

from __future__ import annotations

import zlib
from typing import Final

from holdfast.wire.errors import TooLarge, Usage

# A shorter answer is not packed: the head of gzip and a packet's worth outweigh what is saved.
PACKED_BYTES_MIN: Final = 256
# How hard it is tried, of 9: on numbers more effort saves little and takes several times as long.
PACKING_LEVEL: Final = 1

_GZIP: Final = zlib.MAX_WBITS | 16
_WAYS: Final = {b"gzip": _GZIP, b"x-gzip": _GZIP, b"deflate": zlib.MAX_WBITS}
_NONE: Final = (b"", b"identity")


def unpacked(body: bytes, encoding: bytes, most: int) -> bytes:
    """The body as it was before it was packed so; `TooLarge` at `most` bytes, `Usage` if it is
    damaged or packed in another way."""
    name = encoding.strip().lower()
    if name in _NONE:
        return body
    if name not in _WAYS:
        raise Unknown(
            f"the body is packed as {encoding[:40].decode('latin-1')!r}",
            why="gzip and deflate are known, one at a time",
            fix="send it as it is, or by gzip",
        )
    found, left = b"", body
    while left:  # gzip may have several parts
        inflating = zlib.decompressobj(_WAYS[name])
        try:
            found += inflating.decompress(left, most + 1 - len(found))
        except zlib.error as error:
            raise _damaged(str(error)) from error
        if len(found) > most:
            raise TooLarge(f"the body has more than {most} bytes when it is unpacked")
        if not inflating.eof:
            raise _damaged("it ends too early")
        left = inflating.unused_data
    return found


def packed(body: bytes, wish: bytes) -> tuple[bytes, bytes]:
    """The body as it is wanted (the value of `accept-encoding`), and the name of that way; empty:
    as it is."""
    name = wish.strip().lower()
    if name not in _WAYS or len(body) < PACKED_BYTES_MIN:
        return body, b""
    packing = zlib.compressobj(PACKING_LEVEL, zlib.DEFLATED, _WAYS[name])
    return packing.compress(body) + packing.flush(), name


class Unknown(Usage):
    """A way to pack that is not known (415)."""


def _damaged(why: str) -> Usage:
    return Usage("the body cannot be unpacked", why=why, fix="send it as it is, or pack it again")
