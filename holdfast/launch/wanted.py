"""Whether a cluster is to be up on this machine: `up` says so, `down` says that it is not.

What is ended stays ended, although somebody may still have a session with the embedded server, wait
for a turn to start a gateway, or see to it that what dies is started again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from holdfast.cluster import Cluster
from holdfast.coordination import launch as servers
from holdfast.wire.errors import Unavailable
from holdfast.wire.limits import DOWN_S

_MARK: Final = "down"


def ends(cluster: Cluster) -> None:
    """From now on nothing of it is to run here. Its server is not started again by anybody."""
    cluster.run_folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _mark(cluster).touch(mode=0o600)
    folder = server_folder(cluster)
    if folder is not None:
        servers.forbid(folder, _fix(cluster), DOWN_S)


def begins(cluster: Cluster) -> None:
    """It is to run here."""
    folder = server_folder(cluster)
    if folder is not None:
        servers.allow(folder)
    _mark(cluster).unlink(missing_ok=True)


def ended(cluster: Cluster) -> bool:
    """Whether it was ended here, and nobody has started it since."""
    return _mark(cluster).exists()


def check(cluster: Cluster) -> None:
    """`Unavailable` if it was ended here."""
    if ended(cluster):
        raise Unavailable(
            f"the cluster {cluster.name} in {cluster.folder} was ended",
            why="by holdfast down, on this machine",
            fix=_fix(cluster),
        )


def server_folder(cluster: Cluster) -> Path | None:
    """The folder of its embedded server, if that is its own and not another cluster's."""
    embedded = cluster.embedded
    if embedded is None or not embedded.folder.is_relative_to(cluster.folder):
        return None
    return embedded.folder


def _mark(cluster: Cluster) -> Path:
    return cluster.run_folder / _MARK


def _fix(cluster: Cluster) -> str:
    return f"holdfast up --cluster {cluster.folder}"
