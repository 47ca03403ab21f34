"""The folder of a cluster: `find` gives it, `create` makes one. See `holdfast.cluster`.

from holdfast.launch.cluster import find

cluster = find(folder_option)
with cluster.session() as session:
    ControlPlane(session).jobs()
"""

from holdfast.cluster import (
    CLUSTER_VARIABLE,
    Cluster,
    create,
    default_folder,
    find,
    is_cluster,
    opened,
)

__all__ = [
    "CLUSTER_VARIABLE",
    "Cluster",
    "create",
    "default_folder",
    "find",
    "is_cluster",
    "opened",
]
