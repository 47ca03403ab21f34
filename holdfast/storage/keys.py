"""Keys of blobs and digests of bytes: one spelling for every store. Pure."""

from __future__ import annotations

import hashlib
import re
from typing import Final

from holdfast.wire.errors import Usage
from holdfast.wire.limits import BLOB_KEY_BYTES_MAX

# S3's own limit for a whole key; a segment also becomes a file's name, with room for a suffix.
BLOB_KEY_SEGMENT_BYTES_MAX: Final = 200

BytesLike = bytes | bytearray | memoryview

# What every file system, every object store and every URL takes without quoting. No segment begins
# with a dot: those names are our own.
_SEGMENT: Final = re.compile(r"[A-Za-z0-9_=@+-][A-Za-z0-9._=@+-]*")
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")


def check_key(key: str) -> str:
    """The key, if every store can hold it; else `Usage` with what is wrong."""
    why = ""
    if len(key) > BLOB_KEY_BYTES_MAX:
        why = f"it is longer than {BLOB_KEY_BYTES_MAX} bytes"
    for segment in key.split("/"):
        if len(segment) > BLOB_KEY_SEGMENT_BYTES_MAX:
            why = f"a segment is longer than {BLOB_KEY_SEGMENT_BYTES_MAX} bytes"
        elif not _SEGMENT.fullmatch(segment):
            why = f"the segment {segment!r} is empty, begins with a dot or has another character"
    if why:
        raise Usage(
            f"not a key of a blob: {key[:100]!r}",
            why=why,
            fix="use segments of letters, digits and ._=@+- with / between them",
        )
    return key


def check_prefix(prefix: str) -> str:
    """The prefix without its last slash; "" is everything. A prefix is made of whole segments."""
    stripped = prefix.removesuffix("/")
    return check_key(stripped) if stripped else ""


def check_digest(digest: str) -> str:
    """The digest, if it is spelled as ours are: `sha256:` and 64 hexadecimal digits."""
    if not _DIGEST.fullmatch(digest):
        raise Usage(
            f"not a digest: {digest[:80]!r}", fix="write it as sha256: with 64 hexadecimal digits"
        )
    return digest


def digest_of(data: BytesLike) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def content_key(kind: str, digest: str) -> str:
    """Where bytes with this digest are: `KIND/sha256/ab/abcdef...`."""
    name = check_digest(digest).partition(":")[2]
    return f"{kind}/sha256/{name[:2]}/{name}"


def digest_of_key(key: str) -> str | None:
    """The digest that a content key names; None for any other key."""
    segments = key.split("/")
    if len(segments) < 4 or segments[-2] != segments[-1][:2]:
        return None
    digest = f"{segments[-3]}:{segments[-1]}"
    return digest if _DIGEST.fullmatch(digest) else None
