"""How large the buckets are in which gradients travel. Pure, without torch."""

from __future__ import annotations

from holdfast.wire.limits import BUCKET_BYTES, BUCKET_BYTES_MAX, CHUNK_BYTES_MIN


def bucket_bytes(lanes: int) -> int:
    """For a job of so many lanes, and so of as many workers at most.

    Every member owns a chunk of each bucket, and each chunk is a message to and from every other
    one. With many members the chunks of a small bucket would cost more as messages than as bytes.
    It depends on the lanes, which never change: so all members of all views agree on it.
    """
    return min(max(BUCKET_BYTES, lanes * CHUNK_BYTES_MIN), BUCKET_BYTES_MAX)
