"""A cluster's folder: where its coordination plane and its store are, and which processes run here.

    cluster = find()      # --cluster, HOLDFAST_CLUSTER, ./.holdfast here or above, ~/.holdfast
    with cluster.session() as session:
        ...
    blobs = cluster.blobs()

- `folder`    the value `Cluster`, making and finding one
- `registry`  `run/*.json`: one file for each process that was started here, and who still lives
- `sessions`  waiting for its coordination plane
- `ties`      ending with one's parent

It starts nothing; `holdfast.launch` does. Agents and coordinators read it too, so it stands below
both of them.
"""

from holdfast.cluster.folder import (
    CLUSTER_VARIABLE,
    Cluster,
    create,
    default_folder,
    described,
    find,
    is_cluster,
    occupied,
    opened,
)
from holdfast.cluster.registry import Process, Registration, processes, register

__all__ = [
    "CLUSTER_VARIABLE",
    "Cluster",
    "Process",
    "Registration",
    "create",
    "default_folder",
    "described",
    "find",
    "is_cluster",
    "occupied",
    "opened",
    "processes",
    "register",
]
