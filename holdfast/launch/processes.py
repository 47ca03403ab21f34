"""Which processes of a cluster live on this machine, and being the only one who changes that."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from holdfast.cluster import Cluster, Process
from holdfast.cluster import processes as registered
from holdfast.cluster.registry import identified
from holdfast.coordination import launch as servers
from holdfast.launch.starting import (
    AGENT,
    COORDINATOR,
    GATEWAY,
    ROLLOUT_CONTROLLER,
    SERVER,
    TOPICS,
)
from holdfast.launch.wanted import server_folder
from holdfast.supervise import wanted as wanted_here


def processes(cluster: Cluster) -> list[Process]:
    """The processes of this cluster that live on this machine: server, coordinators, agents;
    where something is served, controllers and gateways; where topics are used, the broker."""
    server = server_of(cluster)
    kinds = (SERVER, COORDINATOR, AGENT, ROLLOUT_CONTROLLER, GATEWAY, TOPICS)
    order = {kind: at for at, kind in enumerate(kinds)}
    found = [*([server] if server is not None else []), *registered(cluster)]
    return sorted(found, key=lambda one: (order.get(one.kind, 9), one.name))


def server_of(cluster: Cluster) -> Process | None:
    """The embedded server over this cluster's own folder. It is known by its folder's lock: who
    started it, and when, does not matter."""
    folder = server_folder(cluster)
    pid = servers.holder(folder) if folder is not None else None
    if folder is None or pid is None:
        return None
    log = str(folder / "server.log")
    address = servers.find(folder) or ""
    return identified(SERVER, "coordination", pid, log=log, facts={"address": address})


@contextmanager
def alone(cluster: Cluster, look: Callable[[str], None] = lambda _what: None) -> Iterator[None]:
    """Two that start or end the same cluster at once do so one after the other. `look` is told if
    another one has to be waited for."""
    what = "another command that starts or ends this cluster"
    with wanted_here.alone(cluster.folder, lambda: look(what)):
        yield
