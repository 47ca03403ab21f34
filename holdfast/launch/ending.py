"""Ending a cluster on this machine: all its processes, and whatever they have left.

Jobs stay, in the coordination plane and the store, and go on with the next `up`. Every process is
known by its number and its start, or, before it could write them down, by the mark with which it
was started; none is looked for by name.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from holdfast.agent import leftovers, processes
from holdfast.cluster import Cluster, Process
from holdfast.cluster import processes as registered
from holdfast.cluster.registry import forget
from holdfast.launch import wanted
from holdfast.launch.processes import alone, server_of
from holdfast.launch.starting import AGENT, GATEWAY, TOPICS
from holdfast.supervise import supervisor
from holdfast.system.process import PART_VARIABLE
from holdfast.wire.errors import TerminalError
from holdfast.wire.limits import DOWN_NOTICE_S, DOWN_S, KILL_AGAIN_S

# What `down` ends, one after the other. No machine has nearly as many parts of a cluster: beyond it
# somebody starts them as fast as they are ended.
DOWN_PARTS_MAX: Final = 1_000

_ORDER: Final = {supervisor.KIND: -1, GATEWAY: 0, AGENT: 2, TOPICS: 3}
_LOOK_S: Final = 0.02


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
    """End the supervisor, gateways, controllers, coordinators, the agents with their workers, and
    the embedded server.

    Workers have a notice to reach a step boundary; with `force` nobody is asked. `look` is told
    what is being done. When it returns, nothing of the cluster runs on this machine, and nothing
    starts again before `up`: not even for a client that is still connected.
    """
    with alone(cluster, lambda what: look(f"waiting for {what}")):
        wanted.ends(cluster)
        workers = sum(len(leftovers.living(home)) for home in homes(cluster))
        stopped = list(_end_parts(cluster, force=force, look=look))
        for record in registered(cluster, ended=True):
            forget(cluster, record)
        for home in homes(cluster):
            if leftovers.living(home):
                look(f"ending workers of {home.name}")
            leftovers.end_workers(home, 0.0 if force else DOWN_NOTICE_S)
        server = server_of(cluster)
        if server is not None:
            look("ending the coordination server")
            stopped.append(end(server, force=force))
        folder = wanted.server_folder(cluster)
        if folder is not None:
            # A server that had not taken its folder yet, or a snapshot that outlives its server.
            _end_marked(folder)
    return Down(tuple(stopped), workers)


def _end_parts(cluster: Cluster, *, force: bool, look: Callable[[str], None]) -> Iterator[Stopped]:
    """All that have a record, and then those that were just being started and have none yet.

    Looked for anew after each: a gateway that ends may have started another Envoy before.
    """
    for _ in range(DOWN_PARTS_MAX):
        living = registered(cluster)
        if living:
            # The supervisor first: nothing is started again. A new one sees that nothing is wanted.
            # Then gateways: nothing new comes. Agents last: nobody then decides what to do about
            # machines that go. The broker after them: what they tell at their end is kept.
            process = min(living, key=lambda one: (_ORDER.get(one.kind, 1), one.name))
            look(f"ending {process.kind} {process.name}")
            yield end(process, force=force)
        elif not _end_marked(cluster.folder):
            return
    raise TerminalError(
        f"processes of {cluster.folder} are started as fast as they are ended",
        why="something that Holdfast does not know starts them again",
        fix="end that first (a service manager?), then run holdfast down again",
    )


def _end_marked(folder: Path) -> int:
    """Kill what was started over the folder and has not said who it is; how many there were. It
    had begun nothing that anybody could miss."""
    deadline_s = time.monotonic() + DOWN_S
    count = processes.kill_marked(folder, PART_VARIABLE)
    while processes.marked(folder, PART_VARIABLE):
        if time.monotonic() > deadline_s:
            raise TerminalError(
                f"a process that was started over {folder} does not end",
                why="it was killed, and the system still waits for its disk or its driver",
                fix="wait, then run holdfast down again",
            )
        time.sleep(_LOOK_S)
        count += processes.kill_marked(folder, PART_VARIABLE)
    return count


def end(process: Process, *, force: bool = False) -> Stopped:
    """End one process; with `force` it is not asked."""
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


def homes(cluster: Cluster) -> Iterator[Path]:
    """The folders of the nodes that this machine is or was."""
    if cluster.nodes_folder.is_dir():
        yield from sorted(path for path in cluster.nodes_folder.iterdir() if path.is_dir())
