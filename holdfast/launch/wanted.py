"""Whether a cluster is to be up on this machine: `up` says so, `down` says that it is not.

What is ended stays ended, although somebody may still have a session with the embedded server, wait
for a turn to start a gateway, or see to it that what dies is started again. Which processes are
wanted is `holdfast.supervise.wanted`.
"""

from __future__ import annotations

from pathlib import Path

from holdfast.cluster import Cluster
from holdfast.coordination import launch as servers
from holdfast.supervise import wanted as here
from holdfast.wire.errors import Unavailable
from holdfast.wire.limits import DOWN_S


def ends(cluster: Cluster) -> None:
    """From now on nothing of it is to run here. Its server is not started again by anybody."""
    here.end(cluster.folder)
    folder = server_folder(cluster)
    if folder is not None:
        servers.forbid(folder, _fix(cluster), DOWN_S)


def begins(cluster: Cluster) -> None:
    """It is to run here."""
    folder = server_folder(cluster)
    if folder is not None:
        servers.allow(folder)
    here.begin(cluster.folder)


def ended(cluster: Cluster) -> bool:
    """Whether it was ended here, and nobody has started it since."""
    return here.is_down(cluster.folder)


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


def _fix(cluster: Cluster) -> str:
    return f"holdfast up --cluster {cluster.folder}"
