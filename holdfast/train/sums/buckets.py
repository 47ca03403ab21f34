"""How large the buckets are in which gradients travel. Pure, without torch."""

from __future__ import annotations

from typing import Final

from holdfast.wire.limits import BUCKET_BYTES

# But each member's part of a bucket has at least so much, where a job may have many: a message
# costs a member some 50 microseconds, and so many bytes on a line of 10 Gb/s twice that.
CHUNK_BYTES_MIN: Final = 64 * 1024
# Up to this: buckets take memory, and what is not yet computed cannot travel.
BUCKET_BYTES_MAX: Final = 64 * 1024 * 1024


def bucket_bytes(lanes: int) -> int:
    """For a job of so many lanes, and so of as many workers at most.

    Every member owns a chunk of each bucket, and each chunk is a message to and from every other
    one. With many members the chunks of a small bucket would cost more as messages than as bytes.
    It depends on the lanes, which never change: so all members of all views agree on it.
    """
    return min(max(BUCKET_BYTES, lanes * CHUNK_BYTES_MIN), BUCKET_BYTES_MAX)
