"""A cluster with its watcher and a session of a user, begun and ended together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from holdfast.coordination import Session, connect
from tests.proofs.control.cluster import ProofCluster
from tests.proofs.control.watcher import Watcher


@dataclass
class WatchedCluster:
    """What a test plays with."""

    cluster: ProofCluster
    watcher: Watcher
    session: Session


@contextmanager
def played(cluster: ProofCluster) -> Iterator[WatchedCluster]:
    """Everything runs within; afterwards nothing is left running, and the watcher has it all."""
    with cluster, connect(cluster.address) as session:
        watcher = Watcher(cluster.plane.hosts, cluster.credential, cluster.traces, cluster.folder)
        cluster.note = watcher.note
        cluster.leading = lambda: watcher.leader
        watcher.start()
        try:
            yield WatchedCluster(cluster, watcher, session)
        finally:
            cluster.note = lambda _event: None
            watcher.close()
