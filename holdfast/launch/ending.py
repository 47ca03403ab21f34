"""Ending a cluster on this machine: all its processes, and whatever they have left.

Jobs stay, in the coordination plane and the store, and go on with the next `up`. Every process is
known by its number and its start; none is looked for by name.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from holdfast.agent import leftovers
from holdfast.cluster import Cluster, Process
from holdfast.cluster import processes as registered
from holdfast.cluster.registry import forget
from holdfast.launch.seen import alone, server_of
from holdfast.launch.starting import AGENT, GATEWAY
from holdfast.wire.errors import TerminalError
from holdfast.wire.limits import DOWN_NOTICE_S, DOWN_S, KILL_AGAIN_S


@dataclass(frozen=True, slots=True)
class Stopped:
    """A process that `down` has ended. `killed`: it did not end when it was asked."""

    kind: str
    name: str
    pid: int
    killed: bool = False


@dataclass(frozen=True, slots=True)
class Down:
    """What `down` has ended."""

    stopped: tuple[Stopped, ...]
    workers: int


def down(
    cluster: Cluster, *, force: bool = False, look: Callable[[str], None] = lambda _what: None
) -> Down:
    """End gateways, conductors, coordinators, the agents with their workers, and the embedded
    server.

    Workers have a notice to reach a step boundary; with `force` nobody is asked. `look` is told
    what is being ended. When it returns, nothing of the cluster runs on this machine.
    """
    with alone(cluster):
        living = registered(cluster)
        workers = sum(len(leftovers.living(home)) for home in _homes(cluster))
        stopped = []
        # Gateways first: nothing new comes. Agents last: nobody then decides what to do about
        # machines that go.
        order = {GATEWAY: 0, AGENT: 2}
        for process in sorted(living, key=lambda one: (order.get(one.kind, 1), one.name)):
            look(f"{process.kind} {process.name}")
            stopped.append(_end(process, force=force))
        for record in registered(cluster, ended=True):
            forget(cluster, record)
        for home in _homes(cluster):
            if leftovers.living(home):
                look(f"workers of {home.name}")
            leftovers.end_workers(home, 0.0 if force else DOWN_NOTICE_S)
        server = server_of(cluster)
        if server is not None:
            look("the coordination server")
            stopped.append(_end(server, force=force))
    return Down(tuple(stopped), workers)


def _end(process: Process, *, force: bool) -> Stopped:
    killed = force
    patience_s = DOWN_S
    if not force:
        process.send(signal.SIGCONT)  # one that somebody had paused cannot hear
        if process.kind == AGENT:
            process.send(signal.SIGINT)
            patience_s += DOWN_NOTICE_S + KILL_AGAIN_S
        else:
            process.send(signal.SIGTERM)
        killed = not process.wait(patience_s)
    if killed:
        process.send(signal.SIGKILL)
        if not process.wait(DOWN_S):
            raise TerminalError(
                f"the {process.kind} {process.name} (process {process.pid}) does not end",
                why="it was killed, and the system still waits for its disk or its driver",
                fix="wait, then run holdfast down again",
            )
    return Stopped(process.kind, process.name, process.pid, killed)


def _homes(cluster: Cluster) -> Iterator[Path]:
    if cluster.nodes_folder.is_dir():
        yield from sorted(path for path in cluster.nodes_folder.iterdir() if path.is_dir())
