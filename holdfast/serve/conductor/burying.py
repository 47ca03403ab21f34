"""Replicas that have ended, and that the plane still shows: their sessions last for some seconds.

The control plane knows better. A worker has a placement, written before it was started, until its
agent has reported its end. So a replica that is shown, of a worker without a placement, on a node
whose agent is there, has ended. Its node is removed, and everybody sees it at once: the gateways,
whoever lists the services, and this conductor, for whom it would count as ready.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from holdfast.control.store import codec
from holdfast.control.store.filing import NODES, page_path, placements_path
from holdfast.coordination import Facts, Membership, Session
from holdfast.serve.conductor.sight import Seen
from holdfast.serve.records import job_name, replicas_path
from holdfast.wire import logs
from holdfast.wire.errors import Corrupt

# Replicas whose nodes a conductor has removed, and does not remove again: far more than can live on
# without a placement at once.
DISMISSED_KEPT: Final = 1_024

_log = logs.get(__name__)


class Burying:
    """For one thread. It asks the plane only when a job's state or the replicas have changed."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._facts = Facts(session)
        self._judged: dict[str, tuple[int, frozenset[int]]] = {}
        # Once for each: one that lives after all joins again, and stays.
        self._dismissed: deque[tuple[str, int]] = deque(maxlen=DISMISSED_KEPT)

    def look(self, service: str, seen: Seen) -> None:
        """Remove those of its replicas that have ended. `RetryError`: the plane did not answer."""
        judged = seen.job_version, frozenset(seen.replicas)
        if seen.job_replicas is None or self._judged.get(service) == judged:
            return
        try:
            self._bury(service, seen)
        except Corrupt as error:  # then they are there until their sessions end
            _log.error("nobody knows which replicas have ended", service=service, error=str(error))
        self._judged[service] = judged

    def forget(self, service: str) -> None:
        """It is removed. Another one of its name counts its workers from 1 again."""
        self._judged.pop(service, None)
        others = [one for one in self._dismissed if one[0] != service]
        self._dismissed = deque(others, maxlen=DISMISSED_KEPT)

    def _bury(self, service: str, seen: Seen) -> None:
        known = {worker for name, worker in self._dismissed if name == service}
        there = {
            worker: replica.node
            for worker, replica in seen.replicas.items()
            if replica.node and worker not in known  # one without a node was started by hand
        }
        unplaced = there.keys() - self._placed(service)
        nodes = self._facts.names(NODES) if unplaced else []
        for worker in sorted(unplaced):
            if there[worker] in nodes:  # else nobody may have reported anything
                self._dismiss(service, worker)

    def _dismiss(self, service: str, worker: int) -> None:
        members = Membership(self._session, replicas_path(service))
        if members.dismiss(str(worker), lambda: worker not in self._placed(service)):
            self._dismissed.append((service, worker))
            _log.info("a replica has ended, by its agent's word", service=service, worker=worker)

    def _placed(self, service: str) -> set[int]:
        """Workers that have a placement. Read after the replicas: those who are shown had one."""
        job = job_name(service)
        numbers = [int(page) for page in self._facts.names(placements_path(job))]
        found = self._facts.read_all([page_path(job, number) for number in numbers])
        return {
            placement.worker
            for path, fact in found.items()
            for placement in codec.placements_from(path, fact.data)
        }
