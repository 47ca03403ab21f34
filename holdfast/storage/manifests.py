"""A checkpoint's manifest: which parts it consists of, and whose they were.

A manifest is JSON in one spelling, and its key holds its digest: the same checkpoint has the same
key, and a damaged manifest is never believed. A manifest alone is no checkpoint; the commit record
in the coordination plane, which names its key, is.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from holdfast.storage.blobs import Blobs
from holdfast.storage.keys import check_key, digest_of
from holdfast.storage.parts import check_part, check_present, verify_part
from holdfast.wire.errors import Corrupt, Full, Refused, Usage
from holdfast.wire.limits import MANIFEST_BYTES_MAX
from holdfast.wire.reports import Part

MANIFESTS: Final = "manifests"
VERSION: Final = 1
_KEYS: Final = ("job", "shares", "step", "version", "view")
_PART_KEYS: Final = ("digest", "key", "size_bytes")


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a checkpoint consists of. `shares`: for each worker of view `view`, its parts in order.

    Restoring goes through `parts`: shares by the worker's number, parts as they were written. The
    result does not depend on who was a worker; only all parts together are the state.
    """

    job: str
    step: int
    view: int
    shares: Mapping[int, tuple[Part, ...]]

    def parts(self) -> Iterator[tuple[int, Part]]:
        """Every part with the worker whose share it is of, in the order of restoring."""
        for worker in sorted(self.shares):
            for part in self.shares[worker]:
                yield worker, part

    @property
    def size_bytes(self) -> int:
        return sum(part.size_bytes for _, part in self.parts())


def manifest_key(manifest: Manifest) -> str:
    """`manifests/JOB/STEP-DIGEST.json`; steps sort as numbers do."""
    return _key(manifest, to_bytes(manifest))


def to_bytes(manifest: Manifest) -> bytes:
    """The one spelling of a manifest."""
    if manifest.step < 0 or manifest.view < 0 or any(worker < 0 for worker in manifest.shares):
        raise Usage("a manifest's step, view and workers are not below 0", fix="check the numbers")
    for _, part in manifest.parts():
        check_part(part)
    tree = {
        "job": manifest.job,
        "shares": {
            str(worker): [
                {"digest": part.digest, "key": part.key, "size_bytes": part.size_bytes}
                for part in parts
            ]
            for worker, parts in manifest.shares.items()
        },
        "step": manifest.step,
        "version": VERSION,
        "view": manifest.view,
    }
    text = json.dumps(tree, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    if len(text) > MANIFEST_BYTES_MAX:
        raise Full(
            f"the manifest of step {manifest.step} has {len(text)} bytes",
            why=f"a manifest has at most {MANIFEST_BYTES_MAX}",
            fix="write fewer and larger parts",
        )
    return text.encode()


def from_bytes(data: bytes) -> Manifest:
    """The manifest that these bytes spell. An unknown version or key is `Refused`: it may mean
    something that we would lose. Anything else that is wrong is `Corrupt`."""
    try:
        tree = json.loads(data)
        if not isinstance(tree, dict):
            raise TypeError("not an object")  # noqa: TRY301  one place says that it is damaged
        if tree.get("version") != VERSION:
            raise Refused(
                f"a manifest of version {tree.get('version')!r} is not known",
                why=f"this Holdfast reads version {VERSION}",
                fix="use the version of Holdfast that wrote it, or a newer one",
            )
        _check_keys(tree, _KEYS)
        manifest = Manifest(
            job=_typed(tree["job"], str),
            step=_typed(tree["step"], int),
            view=_typed(tree["view"], int),
            shares={
                int(worker): tuple(_part(row) for row in _typed(rows, list))
                for worker, rows in _typed(tree["shares"], dict).items()
            },
        )
        spelled = to_bytes(manifest)
    except (ValueError, TypeError, KeyError, RecursionError, Usage) as error:
        raise Corrupt("a manifest cannot be read", why=str(error), fix=_FIX) from error
    if spelled != data:
        raise Corrupt("a manifest is not in its one spelling", fix=_FIX)
    return manifest


def write_manifest(blobs: Blobs, manifest: Manifest) -> str:
    """Write the manifest and return its key, when it is durable. All its parts must be there:
    `Missing` or `Corrupt` otherwise."""
    data = to_bytes(manifest)
    for _, part in manifest.parts():
        check_present(blobs, part)
    key = _key(manifest, data)
    blobs.put(key, data, expect_digest=digest_of(data))
    return key


def read_manifest(blobs: Blobs, key: str) -> Manifest:
    """The manifest with this key, verified by the digest in it."""
    digest = _digest_in(key)
    there = blobs.stat(key)
    if there is not None and there.size_bytes > MANIFEST_BYTES_MAX:
        raise Corrupt(f"{key!r} has {there.size_bytes} bytes: too many for a manifest", fix=_FIX)
    manifest = from_bytes(blobs.get(key, expect_digest=digest))
    if manifest_key(manifest) != key:
        raise Corrupt(f"{key!r} holds the manifest of another checkpoint", fix=_FIX)
    return manifest


def verify(blobs: Blobs, manifest: Manifest) -> None:
    """Read every part. The first that is `Missing` or `Corrupt` ends it, named in the error."""
    for _, part in manifest.parts():
        verify_part(blobs, part)


_FIX: Final = "use an older checkpoint"


def _key(manifest: Manifest, data: bytes) -> str:
    name = digest_of(data).partition(":")[2]
    return check_key(f"{MANIFESTS}/{manifest.job}/{manifest.step:012d}-{name}.json")


def _digest_in(key: str) -> str:
    kind, _, rest = check_key(key).partition("/")
    name = rest.rpartition("/")[2]
    digest = name.partition("-")[2].removesuffix(".json")
    if kind != MANIFESTS or len(digest) != 64 or not name.endswith(".json"):
        raise Usage(
            f"{key!r} is not the key of a manifest", fix=f"{MANIFESTS}/JOB/STEP-DIGEST.json"
        )
    return f"sha256:{digest}"


def _part(row: Any) -> Part:
    _check_keys(_typed(row, dict), _PART_KEYS)
    return Part(
        key=_typed(row["key"], str),
        size_bytes=_typed(row["size_bytes"], int),
        digest=_typed(row["digest"], str),
    )


def _check_keys(tree: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for key in tree:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1, cutoff=0.0)[0]
            raise Refused(
                f"a manifest has the unknown key {key!r}",
                why=f"known are {', '.join(known)}; the nearest is {near!r}",
                fix="use the version of Holdfast that wrote it, or a newer one",
            )


def _typed(value: Any, kind: type) -> Any:
    # A bool is an int for Python; not here.
    if type(value) is not kind:
        raise TypeError(f"{value!r:.80} is not {kind.__name__}")
    return value
