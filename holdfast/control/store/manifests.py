"""Manifests of checkpoints, written before their commit and beside the decisions.

A store may hang for a minute; whoever decides must not. So a manifest is written on a thread, and
the commit is carried out in the tick after it is durable. A manifest without a commit harms
nobody: it is garbage.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from holdfast.control.decide.commands import CommitCheckpoint
from holdfast.storage.blobs import Blobs
from holdfast.storage.claims import Claims
from holdfast.storage.manifests import Manifest, manifest_key, write_manifest
from holdfast.system import logs
from holdfast.wire.errors import HoldfastError
from holdfast.wire.limits import TROUBLE_S

# Manifests that are written at a time; a store that hangs must not hold up the decisions.
MANIFEST_WRITERS: Final = 4

_log = logs.get(__name__)

WriteManifest = Callable[[CommitCheckpoint], str]
"""Make the manifest of this commit durable, and give its key. May take long, may be repeated."""


def manifests_in(blobs: Blobs, claims: Claims) -> WriteManifest:
    """Manifests as blobs, next to the parts that they name. `claims` is the sweeper's, too."""

    def write(commit: CommitCheckpoint) -> str:
        attempt = commit.attempt
        manifest = Manifest(commit.job, attempt.step, attempt.view, dict(commit.parts))
        with claims.needing({manifest_key(manifest), *(part.key for _, part in manifest.parts())}):
            return write_manifest(blobs, manifest)

    return write


@dataclass(slots=True)
class _Under:
    commit: CommitCheckpoint
    future: Future[str]
    failed_s: float | None = None


class ManifestWriter:
    """At most one manifest of each job under way. `wake` is called when one is written."""

    def __init__(self, write: WriteManifest, wake: Callable[[], None]) -> None:
        self._write = write
        self._wake = wake
        self._under: dict[str, _Under] = {}
        self._pool = ThreadPoolExecutor(MANIFEST_WRITERS, thread_name_prefix="manifest")

    def close(self) -> None:
        """Begin no more. What is under way ends by itself, and nobody needs it."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def keep(self, jobs: set[str]) -> None:
        """Forget those of all other jobs: their commits are done, or not wanted any more."""
        self._under = {job: under for job, under in self._under.items() if job in jobs}

    def key_of(self, commit: CommitCheckpoint, now_s: float) -> str | None:
        """The key of its manifest once that is durable; None: not yet, ask again."""
        under = self._under.get(commit.job)
        if under is None or under.commit != commit:
            self._begin(commit)
            return None
        if not under.future.done():
            return None
        error = under.future.exception()
        if error is None:
            return under.future.result()
        if not isinstance(error, HoldfastError):
            raise error
        if under.failed_s is None:
            under.failed_s = now_s
            _log.warning("a manifest was not written", job=commit.job, error=str(error))
        elif now_s >= under.failed_s + TROUBLE_S:
            self._begin(commit)
        return None

    def _begin(self, commit: CommitCheckpoint) -> None:
        future = self._pool.submit(self._write, commit)
        self._under[commit.job] = _Under(commit, future)
        future.add_done_callback(lambda _done: self._wake())
