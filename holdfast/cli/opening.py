"""From a command's words to the cluster that it is about, and to the job that it names."""

from __future__ import annotations

import difflib
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli import completing
from holdfast.wire.errors import Missing, Unavailable

if TYPE_CHECKING:
    from holdfast.agent.wallet import Papers
    from holdfast.control.facts import Job
    from holdfast.control.observing import NodeSeen
    from holdfast.control.plane import ControlPlane
    from holdfast.coordination import Session
    from holdfast.launch.cluster import Cluster

ClusterOption = Annotated[
    Path | None,
    typer.Option("--cluster", help="The cluster's folder.", envvar="HOLDFAST_CLUSTER"),
]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
JobArgument = Annotated[
    str, typer.Argument(metavar="JOB", help="The job's name.", autocompletion=completing.jobs)
]
# What runs is asked of the leader; a listing does not wait for one longer than a person would.
_LEADER_S = 2.0
# A server that was killed is there again within a second, unless the machine is busy.
_SERVER_S = 5.0
_SERVER_LOOK_S = 0.05


@dataclass(frozen=True)
class Opened:
    """A cluster, connected. `down`: it does not run, and this is what it has left."""

    cluster: Cluster
    session: Session
    plane: ControlPlane
    down: bool = False

    def papers(self) -> Papers:
        """Who we are to coordinators and agents."""
        from holdfast.cli.papers import papers_of

        return papers_of(self.cluster)

    def job(self, name: str) -> Job:
        """The job; `Missing` names the nearest one."""
        try:
            return self.plane.job(name)
        except Missing as error:
            raise missing("job", name, self.plane.jobs(), "holdfast jobs --all") from error

    def seen(self) -> tuple[list[NodeSeen], str]:
        """Every machine and what it runs now, as the leader knows; or nothing, and why."""
        from holdfast.control.watching import nodes
        from holdfast.wire.errors import HoldfastError

        if self.down:
            return [], "the cluster is down"
        try:
            return nodes(self.session, self.papers(), _LEADER_S), ""
        except HoldfastError as error:
            return [], f"{error.what}: {error.why}" if error.why else error.what


@contextmanager
def opened(
    folder: Path | None, *, reads: bool = False, patience_s: float | None = None
) -> Iterator[Opened]:
    """Connect to the cluster that `folder`, the environment or this place names. `reads`: if it is
    down, a look at what it has left will do. `patience_s`: for the connection, and for each
    question; otherwise what an ensemble may need."""
    from holdfast.control.plane import ControlPlane
    from holdfast.launch import cluster as clusters

    found = clusters.find(folder)
    waits = {} if patience_s is None else _waits(patience_s)
    embedded = _down(found, _SERVER_S if patience_s is None else 0.0)
    if embedded is None:
        with found.session(**waits) as session:
            yield Opened(found, session, ControlPlane(session))
        return
    from holdfast.cli import left_behind, listing, times

    left_s = left_behind.left_s(embedded) if reads else None
    if left_s is None:
        raise _not_up(found)
    try:
        with left_behind.session_over(embedded, found.run_folder) as session:
            when = f"{times.clock(left_s)}, {times.ago(left_s)} ago"
            listing.note(f"the cluster in {found.folder} is down; as it was left at {when}")
            yield Opened(found, session, ControlPlane(session), down=True)
    except BlockingIOError:
        raise _not_up(found, "it is being started now", "try again") from None


def _waits(patience_s: float) -> dict[str, float]:
    return {"timeout_s": patience_s, "operation_timeout_s": patience_s}


def _down(cluster: Cluster, server_s: float) -> Path | None:
    """The folder of its embedded server, if that does not run. Looking must not start it. One that
    has died is started by whoever had a session with it, if somebody is left: that is awaited."""
    from holdfast.cluster import processes
    from holdfast.coordination import launch
    from holdfast.coordination.address import EmbeddedAddress, parse

    address = parse(cluster.coordination)
    if not isinstance(address, EmbeddedAddress):
        return None
    deadline_s = time.monotonic() + server_s
    while launch.find(address.folder) is None:
        if not processes(cluster) or time.monotonic() >= deadline_s:
            return address.folder
        time.sleep(_SERVER_LOOK_S)
    return None


def _not_up(
    cluster: Cluster,
    why: str = "its coordination server does not run",
    fix: str = "holdfast up",
) -> Unavailable:
    return Unavailable(
        f"the cluster {cluster.name} in {cluster.folder} is not up", why=why, fix=fix
    )


def missing(what: str, name: str, known: Iterable[str], listing: str) -> Missing:
    """`there is no job X`, with the nearest name if one is near."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    if near:
        return Missing(f"there is no {what} {name}", fix=f"did you mean {near[0]}?")
    why = "" if names else "there is none at all"
    return Missing(f"there is no {what} {name}", why=why, fix=listing)
