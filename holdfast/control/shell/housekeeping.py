"""The leader's housekeeping: blobs that nothing needs are removed, now and then, on a thread.

What is needed is read anew from the coordination plane for each decision of the sweeper: the
manifests of the commit records of all jobs, the parts that attempts in flight have reported, the
bundles of all jobs and names, and the parts and bundles of all models' versions. A job or a version
that cannot be read may need anything: then nothing is removed. Blobs that say themselves until when
they are needed (`storage.lapsing`) go on their day.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, Self

from holdfast.control.decide.facts import ObservedState
from holdfast.control.store.bundles import BundlesInPlane
from holdfast.control.store.plane import ControlPlane
from holdfast.coordination import Session
from holdfast.models.catalogue import Catalogue
from holdfast.storage.blobs import Blobs
from holdfast.storage.bundles import BUNDLES
from holdfast.storage.claims import Claims
from holdfast.storage.garbage import References, Sweeper
from holdfast.storage.keys import content_key
from holdfast.storage.lapsing import remove_lapsed
from holdfast.system import logs
from holdfast.system.retries import Retries
from holdfast.system.tasks import OwnedThread, start_thread
from holdfast.wire.errors import HoldfastError
from holdfast.wire.limits import GARBAGE_GRACE_S, GARBAGE_WAIT_S, THREAD_END_S

# The leader looks so often for blobs that nothing needs; a look lists the store.
SWEEP_EVERY_S: Final = 300.0

log = logs.get(__name__)


def references(session: Session, observed: ObservedState) -> References:
    """Everything that is needed of the store, as the coordination plane and the agents say."""
    jobs = ControlPlane(session).jobs().values()
    names = BundlesInPlane(session).all().values()
    manifests = {checkpoint.manifest for job in jobs for checkpoint in job.checkpoints}
    # What cannot be read now may be readable again: the disk that holds the rest is not mounted.
    manifests |= {one.checkpoint.manifest for job in jobs for one in job.unreadable}
    in_flight = {
        part.key
        for node in observed.nodes.values()
        for worker in node.workers
        for parts in worker.parts.values()
        for part in parts
    }
    digests = {job.spec.bundle for job in jobs if job.spec.bundle}
    digests |= {version.digest for name in names for version in name.versions}
    bundles = frozenset(content_key(BUNDLES, digest) for digest in digests)
    model_parts, model_bundles = Catalogue(session).roots()
    return References(
        frozenset(manifests), frozenset(in_flight) | model_parts, bundles | model_bundles
    )


class Housekeeping:
    """Sweeps while `leads()`; a `with` around the coordinator's run."""

    def __init__(
        self,
        session: Session,
        blobs: Blobs,
        observed: Callable[[], ObservedState],
        leads: Callable[[], bool],
        *,
        every_s: float = SWEEP_EVERY_S,
        grace_s: float = GARBAGE_GRACE_S,
        wait_s: float = GARBAGE_WAIT_S,
        claims: Claims | None = None,
    ) -> None:
        self._sweeper = Sweeper(
            blobs,
            lambda: references(session, observed()),
            grace_s=grace_s,
            wait_s=wait_s,
            claims=claims,
        )
        self._blobs = blobs
        self._leads = leads
        self._every_s = every_s
        self._ended = threading.Event()
        self._thread: OwnedThread | None = None

    def __enter__(self) -> Self:
        self._thread = start_thread(self._run, "housekeeping")
        return self

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join(THREAD_END_S)

    def _run(self) -> None:
        retries = Retries("removing what nothing needs from the store")
        while not self._ended.wait(self._every_s):
            if not self._leads():
                continue
            try:
                self._sweeper.step()
                remove_lapsed(self._blobs)
            except HoldfastError as error:
                log.warning("nothing is removed from the store for now", reason=str(error))
            except Exception as error:  # a bug: workers and jobs do not need a smaller store
                self._ended.wait(retries.failed(error))
            else:
                retries.well()
