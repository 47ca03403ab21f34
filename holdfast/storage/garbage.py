"""Removing what no checkpoint and no job needs. What is needed is never removed.

Deciding is pure: `collectable` says what may go. Removing has two phases, so that whatever is
needed again between them is safe:

1. mark: list everything, then read what is needed; write down what may go, and when each was
   written;
2. wait;
3. sweep: list again, read again what is needed; remove what was marked, may still go, and has not
   been written again since. A blob is removed only in the state in which it was marked.

Why a part that somebody is about to need is safe: `put_part` leaves an old part not as it is but
writes it again, and a young part is not collectable. So it is enough that a part which was put is
known (in flight, or in a committed manifest) before half a grace period is over. The same holds for
a manifest that is written before its commit record, and for a bundle: `push` and `renew` write an
old one again, before a job or a name is pinned to it.

Every step may be cut off anywhere: marks are only a note of what was seen. Without them we wait
once more.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from holdfast.storage.backend import Listed
from holdfast.storage.blobs import Blobs
from holdfast.storage.bundles import BUNDLES
from holdfast.storage.claims import Claims
from holdfast.storage.manifests import MANIFESTS, Manifest, manifest_key, read_manifest
from holdfast.storage.parts import PARTS
from holdfast.system import logs
from holdfast.wire.errors import Missing
from holdfast.wire.limits import GARBAGE_GRACE_S, GARBAGE_WAIT_S

# Removed with one look at what is needed; a look older than this removal would be too old.
GARBAGE_BATCH: Final = 200

MARKS: Final = "garbage/marks.json"
log: Final = logs.get(__name__)


@dataclass(frozen=True, slots=True)
class References:
    """What is needed, as the coordination plane says: the keys of the manifests of all commit
    records, the keys of what attempts in flight have reported, and the keys of the bundles of jobs
    and names. `bundles` None: they are not known, and no bundle is removed."""

    manifests: frozenset[str] = frozenset()
    in_flight: frozenset[str] = frozenset()
    bundles: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class Marks:
    """What was found to be unneeded at `marked_s`: key -> when it was written."""

    marked_s: float
    found: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Swept:
    """What a step did: how many blobs it marked, or removed, and their bytes."""

    marked: int = 0
    removed: int = 0
    removed_bytes: int = 0


def collectable(
    found: Iterable[Listed],
    committed: Iterable[Manifest],
    in_flight: Collection[str],
    now_s: float,
    grace_s: float = GARBAGE_GRACE_S,
) -> frozenset[str]:
    """The keys, of those found, that nothing needs: no committed manifest, no attempt in flight,
    and nobody who may be about to (it is older than the grace period)."""
    needed = set(in_flight)
    for manifest in committed:
        needed.add(manifest_key(manifest))
        needed.update(part.key for _, part in manifest.parts())
    return frozenset(
        blob.key for blob in found if blob.key not in needed and now_s - blob.modified_s >= grace_s
    )


def sweepable(
    marks: Marks, found: Iterable[Listed], may_go: Collection[str], now_s: float, wait_s: float
) -> tuple[Listed, ...]:
    """Of what may go now, what was marked long enough ago and not been written again since."""
    if now_s - marks.marked_s < wait_s:
        return ()
    return tuple(
        blob
        for blob in found
        if blob.key in may_go and marks.found.get(blob.key) == blob.modified_s
    )


class Sweeper:
    """Marks and sweeps a store. One at a time per store: the leader's.

    `references` reads what is needed, all of it, or raises. Each step reads it anew; when it or a
    committed manifest cannot be read, nothing is removed. `claims` is shared with whoever commits
    in this process: on a store of objects a removal and a commit must not come between each other.
    """

    def __init__(
        self,
        blobs: Blobs,
        references: Callable[[], References],
        *,
        grace_s: float = GARBAGE_GRACE_S,
        wait_s: float = GARBAGE_WAIT_S,
        claims: Claims | None = None,
    ) -> None:
        self._blobs = blobs
        self._claims = claims or Claims()
        self._references = references
        self._grace_s = grace_s
        self._wait_s = wait_s
        self._manifests: dict[str, Manifest] = {}

    def step(self) -> Swept:
        """Do what is due: sweep marks that have waited, mark when there are none, or nothing."""
        marks = self._read_marks()
        if marks is None:
            return self._mark()
        if self._blobs.now_s() - marks.marked_s < self._wait_s:
            return Swept()
        return self._sweep(marks)

    def _mark(self) -> Swept:
        found, may_go = self._look()
        kept = {blob.key: blob.modified_s for blob in found if blob.key in may_go}
        if kept:
            tree = {"marked_s": self._blobs.now_s(), "found": kept}
            self._blobs.put(MARKS, json.dumps(tree, sort_keys=True).encode())
        self._blobs.tidy()
        return Swept(marked=len(kept))

    def _sweep(self, marks: Marks) -> Swept:
        found, may_go = self._look()
        due = sweepable(marks, found, may_go, self._blobs.now_s(), self._wait_s)
        removed = removed_bytes = 0
        for start in range(0, len(due), GARBAGE_BATCH):
            batch = due[start : start + GARBAGE_BATCH]
            # What is needed may have changed while the last batch was removed.
            still = self._may_go(batch)
            for blob in batch:
                if blob.key in still and self._remove(blob.key, marks.found[blob.key]):
                    removed += 1
                    removed_bytes += blob.size_bytes
        self._blobs.delete(MARKS)
        if removed:
            log.info("removed what nothing needs", blobs=removed, bytes=removed_bytes)
        return Swept(removed=removed, removed_bytes=removed_bytes)

    def _remove(self, key: str, marked_s: float) -> bool:
        with self._claims.removing(key) as free:
            return free and self._blobs.delete_unless_newer(key, marked_s)

    def _look(self) -> tuple[list[Listed], frozenset[str]]:
        # In this order: what is put after the listing is not in it, and what was put before is
        # either young, or known to whoever says what is needed.
        found = [blob for kind in (PARTS, MANIFESTS, BUNDLES) for blob in self._blobs.list(kind)]
        return found, self._may_go(found)

    def _may_go(self, found: Collection[Listed]) -> frozenset[str]:
        # The time is taken before the references: what is young by it may be put meanwhile.
        now_s = self._blobs.now_s()
        needed = self._references()
        committed = [self._manifest(key) for key in sorted(needed.manifests)]
        self._manifests = {manifest_key(manifest): manifest for manifest in committed}
        if needed.bundles is None:
            found = [blob for blob in found if not blob.key.startswith(f"{BUNDLES}/")]
        kept = needed.in_flight | (needed.bundles or frozenset())
        return collectable(found, committed, kept, now_s, self._grace_s)

    def _manifest(self, key: str) -> Manifest:
        # A manifest never changes; what was read once is still so.
        return self._manifests.get(key) or read_manifest(self._blobs, key)

    def _read_marks(self) -> Marks | None:
        try:
            tree = json.loads(self._blobs.get(MARKS))
            found = {str(key): float(modified_s) for key, modified_s in tree["found"].items()}
            return Marks(float(tree["marked_s"]), found)
        except Missing:
            return None
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            log.warning("the marks cannot be read; marking anew", why=str(error))
            return None
