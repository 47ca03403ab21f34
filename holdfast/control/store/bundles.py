"""Names of bundles in the coordination plane, and what a job's `bundle` means.

    names = BundlesInPlane(session)
    version = record_push(names, "trainer", digest, size_bytes, now_s)
    names.all()                     # every name with its versions, also for the garbage's roots
    pin(reference, folder, names, blobs)    # a folder, NAME, NAME@3 or digest -> the digest

Each name is one node; every change of it is one compare-and-set.
"""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from holdfast.control.store import layout
from holdfast.coordination import Config, Facts, Session
from holdfast.storage import bundles
from holdfast.storage.blobs import Blobs
from holdfast.storage.bundle_names import (
    BundleName,
    check_name,
    from_bytes,
    resolved,
    rolled_back,
    split_reference,
    to_bytes,
)
from holdfast.storage.keys import check_digest
from holdfast.wire.errors import Conflict, Missing
from holdfast.wire.limits import UPDATE_TRIES_MAX

BUNDLES: Final = f"{layout.ROOT}/bundles"


class BundlesInPlane:
    """See `storage.bundle_names.BundleNames`."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._facts = Facts(session)

    def read(self, name: str) -> tuple[BundleName | None, int]:
        """The name, or None, and its revision."""
        value, version = self._config(name).get()
        return _name_from(value), version

    def write(self, name: BundleName, revision: int) -> None:
        """Replace it; `Conflict` when it is no longer at that revision."""
        value = json.loads(to_bytes(name))
        self._config(name.name).put(value, expect=revision)

    def get(self, name: str) -> BundleName:
        """The name; `Missing`, with the nearest one, if there is none."""
        found, _ = self.read(check_name(name))
        if found is None:
            raise self.missing(name)
        return found

    def all(self) -> dict[str, BundleName]:
        """Every name."""
        found = {}
        for name in sorted(self._facts.names(BUNDLES, fresh=True)):
            held, _ = self.read(name)
            if held is not None:
                found[name] = held
        return found

    def roll_back(self, name: str, to: int | None = None) -> BundleName:
        """Make an older version current, for jobs to come."""
        for _ in range(UPDATE_TRIES_MAX):
            before, revision = self.read(check_name(name))
            if before is None:
                raise self.missing(name)
            after = rolled_back(before, to)
            try:
                if after != before:
                    self.write(after, revision)
            except Conflict:
                continue
            return after
        raise Conflict(f"others change the bundle {name!r} all the time", fix="try again")

    def missing(self, name: str) -> Missing:
        near = difflib.get_close_matches(name, self._facts.names(BUNDLES), n=1, cutoff=0.5)
        fix = f"did you mean {near[0]}?" if near else f"holdfast bundle push {name} DIR"
        return Missing(f"there is no bundle {name}", fix=fix)

    def _config(self, name: str) -> Config:
        return Config(self._session, f"{BUNDLES}/{name}")


def _name_from(value: Any) -> BundleName | None:
    return None if value is None else from_bytes(json.dumps(value).encode())


@dataclass(frozen=True, slots=True)
class Pinned:
    """What a new job runs: the digest, and how to call it. `pushed`: it was a folder."""

    digest: str
    shown: str
    pushed: bundles.Bundle | None = None


def pin(reference: str, base: Path, names: BundlesInPlane, blobs: Blobs) -> Pinned:
    """What `bundle: reference` means now. A folder (relative to `base`) is packed and pushed.

    A plain word is a name if there is one, else a folder; with a slash or a dot in front it is
    always a folder. `Missing` if it is neither.
    """
    if reference.startswith("sha256:"):
        digest = check_digest(reference)
        if not bundles.renew(blobs, digest):
            raise Missing(
                f"the store has no bundle {digest}",
                why="nobody has pushed it to this cluster",
                fix="holdfast bundle push NAME DIR",
            )
        return Pinned(digest, _short(digest))
    folder = base / Path(reference).expanduser()
    certain = reference.startswith((".", "~")) or "/" in reference
    if not certain:
        name, number = split_reference(reference)
        found, _ = names.read(name)
        if found is not None:
            version = resolved(found, number)
            return Pinned(version.digest, f"{name}@{version.number}")
        if not folder.is_dir():
            raise names.missing(name)
    if not folder.is_dir():
        raise Missing(
            f"there is no folder {folder}",
            why=f"the job's bundle is {reference!r}",
            fix="name the folder with the job's code, or a pushed bundle: holdfast bundle list",
        )
    bundle = bundles.push(blobs, folder)
    return Pinned(bundle.digest, _short(bundle.digest), bundle)


def _short(digest: str) -> str:
    """Enough of a digest to tell it from others by eye."""
    return digest[: len("sha256:") + 12]
