"""Blobs that nobody refers to for ever: each has the day in its key from which it may be removed.

    LAPSING/2026-11-26/KIND/sha256/ab/abcdef...

Whoever writes one chooses a day that is later than the end of whatever refers to it. The same
bytes, written on another day, are another blob: so a writer never counts on a blob that is about to
go, and what removes them needs to know nothing but the day. Neither can come between the other, on
any store, without a lock.
"""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Final

from holdfast.storage.blobs import Blob, Blobs
from holdfast.storage.keys import BytesLike, content_key, digest_of
from holdfast.system import logs

LAPSING: Final = "lapsing"
DAY_S: Final = 86_400
# Whole days between the end of what was asked for and the removal: one that rounding takes, and one
# for clocks that differ and writers that are slow.
LAPSE_SLACK_DAYS: Final = 2
# Blobs removed in one step of the leader's housekeeping; the rest waits for the next.
LAPSED_BATCH: Final = 2_000

log: Final = logs.get(__name__)


def lapse_day(now_s: float, keep_s: float) -> date:
    """The first day on which a blob may go that is written now and needed for `keep_s`."""
    return day_of(now_s + keep_s + LAPSE_SLACK_DAYS * DAY_S)


def day_of(now_s: float) -> date:
    return datetime.fromtimestamp(now_s, UTC).date()


def lapsing_key(kind: str, digest: str, day: date) -> str:
    return content_key(f"{LAPSING}/{day.isoformat()}/{kind}", digest)


def day_of_key(key: str) -> date | None:
    """The day from which this blob may go; None: it is not named as ours are, and stays."""
    first, _, rest = key.partition("/")
    word = rest.partition("/")[0]
    try:
        day = date.fromisoformat(word)
    except ValueError:
        return None
    return day if first == LAPSING and day.isoformat() == word else None


def put_lapsing(blobs: Blobs, kind: str, data: BytesLike, keep_s: float) -> Blob:
    """Write bytes that are needed for `keep_s` from now, unless a blob of the same day has them;
    they are durable when this returns. Nobody changes `data` meanwhile."""
    digest = digest_of(data)
    key = lapsing_key(kind, digest, lapse_day(blobs.now_s(), keep_s))
    size_bytes = memoryview(data).nbytes
    there = blobs.stat(key)
    if there is None or there.size_bytes != size_bytes:
        return blobs.put(key, data, expect_digest=digest, still=True)
    blobs.confirm(key)
    return Blob(key, size_bytes, digest)


def remove_lapsed(blobs: Blobs, most: int = LAPSED_BATCH) -> int:
    """Remove blobs whose day has come, `most` at a time; how many went."""
    today = day_of(blobs.now_s())
    due: list[str] = []
    for blob in blobs.list(LAPSING):  # in the order of their days
        day = day_of_key(blob.key)
        if len(due) >= most or (day is not None and day > today):
            break
        if day is not None:
            due.append(blob.key)
    for key in due:
        blobs.delete(key)
    if due:
        log.info("removed blobs whose time is over", blobs=len(due))
    return len(due)
