"""Which processes were started over a cluster's folder, and which of them live.

    with register(cluster, "agent", "node-1") as registration:
        registration.note(leader="127.0.0.1:4001")

Each process writes its own record, `run/KIND-NAME.json`, and holds a lock beside it while it lives:
so a starter that is killed leaves no process unknown. (Until its record is there, a mark in the
environment that it was started with tells of it: `holdfast.system.process`.) A record of a process
that has ended says who it was; a process is signalled only through a handle of exactly the one that
wrote it. The records themselves are `holdfast.supervise.records`.
"""

from __future__ import annotations

from pathlib import Path

from holdfast.cluster.folder import Cluster
from holdfast.supervise import records, watch
from holdfast.supervise.records import Process, Registration, identified

__all__ = [
    "Process",
    "Registration",
    "forget",
    "identified",
    "log_path",
    "processes",
    "record_path",
    "recorded",
    "register",
    "write_record",
]


def register(cluster: Cluster, kind: str, name: str, *, kept: bool = False) -> Registration:
    """Be the process of this kind and name: see `supervise.watch.register`."""
    return watch.register(cluster.folder, kind, name, kept=kept)


def processes(cluster: Cluster, *, ended: bool = False) -> list[Process]:
    """The processes that live over this folder; with `ended` also those that left a record."""
    return records.processes(cluster.folder, ended=ended)


def record_path(cluster: Cluster, kind: str, name: str) -> Path:
    return records.record_path(cluster.folder, kind, name)


def log_path(cluster: Cluster, kind: str, name: str) -> Path:
    """Where its output goes when it is started by `holdfast.launch`."""
    return records.log_path(cluster.folder, kind, name)


def forget(cluster: Cluster, process: Process) -> None:
    """Remove the record of a process that has ended without doing so itself."""
    path = record_path(cluster, process.kind, process.name)
    if records.read(path) == process and not process.alive:
        path.unlink(missing_ok=True)


def write_record(cluster: Cluster, process: Process) -> None:
    """Keep the record of a process that cannot do so itself."""
    records.write(record_path(cluster, process.kind, process.name), process)


def recorded(cluster: Cluster, kind: str, name: str) -> Process | None:
    """The process of that record; it may have ended. None: there is no record."""
    return records.recorded(cluster.folder, kind, name)
