"""Parts: blobs that are named by their content, so that the same bytes are written once.

A part is the bytes of a safetensors file, as they are: any program that reads safetensors reads it.

A part that nobody needs is removed by `garbage` when it is old. So whoever is about to need a part
must find it young: `put_part` leaves a part alone only if it was written less than half a grace
period ago, and writes it again otherwise.
"""

from __future__ import annotations

import hashlib
from typing import Final

from holdfast.storage.blobs import Blobs
from holdfast.storage.keys import check_digest, content_key
from holdfast.storage.sources import Data, source_of
from holdfast.wire.errors import Corrupt, Missing, Usage
from holdfast.wire.limits import GARBAGE_GRACE_S
from holdfast.wire.reports import Part

PARTS: Final = "parts"


def part_of(data: Data) -> Part:
    """The part that these bytes are, without writing them."""
    # The name is the digest, so the bytes have to be gone through before they are written.
    source = source_of(data)
    if not source.again:
        raise Usage(
            "a part cannot be made from what can be read only once",
            fix="give bytes, a Path, or a file that can be read twice",
        )
    found = hashlib.sha256()
    size_bytes = 0
    for chunk in source.chunks():
        found.update(chunk)
        size_bytes += memoryview(chunk).nbytes
    digest = f"sha256:{found.hexdigest()}"
    return Part(content_key(PARTS, digest), size_bytes, digest)


def check_part(part: Part) -> Part:
    """The part, if its key is the one that its digest gives; `Corrupt` otherwise."""
    try:
        right = content_key(PARTS, check_digest(part.digest))
    except Usage as error:
        raise Corrupt(f"part {part.key!r} has a bad digest", why=error.what) from error
    if part.key != right or part.size_bytes < 0:
        raise Corrupt(
            f"part {part.key!r} is not named by its content",
            why=f"with the digest {part.digest} its key is {right!r}",
            fix="do not use this manifest; use an older checkpoint",
        )
    return part


def put_part(
    blobs: Blobs, data: Data, *, grace_s: float = GARBAGE_GRACE_S, still: bool = False
) -> Part:
    """Write a part, if it is not there already, and return it when it is durable.

    One that is there with the right size, and young enough to be safe from removal, is not written
    again. Its bytes are not read: whoever reads a part verifies it. `still`: nobody changes `data`
    before this returns, so it is enough to hash it once.
    """
    part = part_of(data)
    there = blobs.stat(part.key)
    young = there is not None and blobs.now_s() - there.modified_s < grace_s / 2
    if there is None or there.size_bytes != part.size_bytes or not young:
        blobs.put(part.key, data, expect_digest=part.digest, still=still)
    else:
        blobs.confirm(part.key)
    return part


def read_part(blobs: Blobs, part: Part) -> bytes:
    """The bytes of a part: `Missing`, or `Corrupt` with its key and both digests, if not the
    right ones."""
    check_part(part)
    return blobs.get(part.key, expect_digest=part.digest)


def verify_part(blobs: Blobs, part: Part) -> None:
    """Read a part without keeping it; the same errors as `read_part`."""
    check_part(part)
    for _ in blobs.stream(part.key, expect_digest=part.digest):
        pass


def check_present(blobs: Blobs, part: Part) -> None:
    """Whether a part is there with its size, without reading it: `Missing` or `Corrupt` if not."""
    there = blobs.stat(check_part(part).key)
    if there is None:
        raise Missing(f"part {part.key!r} is not in {blobs.address}")
    if there.size_bytes != part.size_bytes:
        raise Corrupt(
            f"part {part.key!r} in {blobs.address} is damaged",
            why=f"it should have {part.size_bytes} bytes and has {there.size_bytes}",
            fix="use an older checkpoint",
        )
