"""Whether the blob store is there: looked at now and then, and told to people while it is not.

A folder that is not mounted looks like an empty one. So what is looked for is something that the
store must have: the manifest of a committed checkpoint, or the code of a job.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, Self

from holdfast.control.decide.facts import DesiredState
from holdfast.storage import Blobs
from holdfast.storage.bundles import BUNDLES
from holdfast.storage.keys import content_key
from holdfast.system import logs
from holdfast.system.tasks import OwnedThread, start_thread
from holdfast.wire.errors import HoldfastError
from holdfast.wire.limits import THREAD_END_S

# One question to the store each time.
STORE_LOOK_S: Final = 5.0
# Looks that fail in a row before people are told: what is looked for may just have been removed.
_FAILURES: Final = 2
_ANY: Final = "manifests/any"

log = logs.get(__name__)


class StoreWatch:
    """`trouble` says in a sentence what is wrong with the store, and since when; empty: nothing.
    `wake` is called when that changes. A `with` around the coordinator's run."""

    def __init__(
        self,
        blobs: Blobs,
        wake: Callable[[], None],
        *,
        every_s: float = STORE_LOOK_S,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        self.trouble = ""
        self._blobs = blobs
        self._wake = wake
        self._every_s = every_s
        self._wall_s = wall_s
        self._desired: DesiredState | None = None
        self._failures = 0
        self._since_s = 0.0
        self._ended = threading.Event()
        self._thread: OwnedThread | None = None

    def expects(self, desired: DesiredState) -> None:
        """What the store must have, as the leader sees it now. One that does not lead does not
        look."""
        self._desired = desired

    def __enter__(self) -> Self:
        self._thread = start_thread(self._run, "store watch")
        return self

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join(THREAD_END_S)

    def _run(self) -> None:
        while not self._ended.wait(self._every_s):
            self.look()

    def look(self) -> None:
        """Ask the store once."""
        desired, self._desired = self._desired, None
        if desired is None:
            return
        why = self._wrong(_expected(desired))
        if not why:
            self._failures = 0
            self._set("")
            return
        if not self._failures:
            self._since_s = self._wall_s()
        self._failures += 1
        if self._failures >= _FAILURES and not self.trouble:
            since = time.strftime("%H:%M:%S UTC", time.gmtime(self._since_s))
            self._set(f"the store {self._blobs.address} is away since {since} ({why})")

    def _wrong(self, key: str) -> str:
        try:
            found = self._blobs.stat(key)
        except HoldfastError as error:
            return error.what
        return f"{key} is not there" if found is None and key != _ANY else ""

    def _set(self, trouble: str) -> None:
        if trouble == self.trouble:
            return
        self.trouble = trouble
        log.warning(trouble or "the store is there again")
        self._wake()


def _expected(desired: DesiredState) -> str:
    """The key of a blob that must be there."""
    for job in desired.jobs.values():
        if job.checkpoints:
            return job.checkpoints[-1].manifest
        if job.spec.bundle:
            return content_key(BUNDLES, job.spec.bundle)
    return _ANY
