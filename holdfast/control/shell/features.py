"""Having the Valkey of feature tables started, once there are some (`cluster.features`)."""

from __future__ import annotations

from typing import Any

from holdfast.cluster import Cluster
from holdfast.cluster import features as records
from holdfast.control.shell.keeping import ProcessKeeper
from holdfast.coordination import Session
from holdfast.features import hosting


def features_keeper(cluster: Cluster, session: Session) -> ProcessKeeper:
    """Keeps the Valkey of this cluster, if it is to have one."""

    def keep(_value: Any) -> bool:
        access = cluster.access()
        assert access is not None, "a cluster has a secret where it was made"
        return hosting.keep(cluster.folder, access.secret)

    return ProcessKeeper(cluster, records.config(session), "features", _wants, keep)


def _wants(value: Any) -> bool:
    found = records.record_from(value)
    return found is not None and found.embedded
