"""From a folder to the cluster that is meant, connected: what every verb stands on."""

from __future__ import annotations

import difflib
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from holdfast.client import texts
from holdfast.wire.errors import Missing, Unavailable

if TYPE_CHECKING:
    from holdfast.agent.wallet import Papers
    from holdfast.control.decide.facts import Job
    from holdfast.control.rpc.observing import NodeSeen
    from holdfast.control.store.plane import ControlPlane
    from holdfast.coordination import MemberInfo, Session
    from holdfast.launch.cluster import Cluster
    from holdfast.serve.records import Service
    from holdfast.serve.services import Services

# What runs is asked of the leader; nobody waits for one longer than a person would.
LEADER_ASK_S: Final = 2.0

Note = Callable[[str], None]
# A server that was killed is there again within a second, unless the machine is busy.
_SERVER_S: Final = 5.0
_SERVER_LOOK_S: Final = 0.05


@dataclass(frozen=True)
class Opened:
    """A cluster, connected. `down`: it does not run, and this is what it has left. `handle`: for
    whom it was opened, the name of a job and when that was submitted; another that has its name
    since is not that job."""

    cluster: Cluster
    session: Session
    plane: ControlPlane
    down: bool = False
    handle: tuple[str, float] | None = None

    def papers(self) -> Papers:
        """Who we are to coordinators and agents."""
        from holdfast.client.papers import papers_of

        return papers_of(self.cluster)

    def job(self, name: str) -> Job:
        """The job; `Missing` names the nearest one."""
        try:
            found = self.plane.job(name)
        except Missing as error:
            raise missing("job", name, self.plane.jobs(), "holdfast jobs --all") from error
        if self.handle not in (None, (name, found.submitted_s)):
            raise Missing(
                f"the job {name} that this handle is of was removed",
                why="another job has its name by now",
                fix=f"client.job({name!r}) is that one",
            )
        return found

    def services(self) -> Services:
        from holdfast.serve.services import Services

        return Services(self.session)

    def service(self, name: str) -> Service:
        """The service; `Missing` names the nearest one."""
        services = self.services()
        try:
            return services.service(name)
        except Missing as error:
            raise missing("service", name, services.services(), "holdfast services") from error

    def members(self) -> dict[str, MemberInfo]:
        """Agents whose session is alive."""
        from holdfast.coordination import Membership
        from holdfast.wire import rpc

        return dict(Membership(self.session, rpc.NODES_PATH).members())

    def seen(self) -> tuple[list[NodeSeen], str]:
        """Every machine and what it runs now, as the leader knows; or nothing, and why."""
        from holdfast.control.rpc.watching import nodes
        from holdfast.wire.errors import HoldfastError

        if self.down:
            return [], "the cluster is down"
        try:
            return nodes(self.session, self.papers(), LEADER_ASK_S), ""
        except HoldfastError as error:
            return [], f"{error.what}: {error.why}" if error.why else error.what


@contextmanager
def opened(
    folder: Path | None,
    *,
    reads: bool = False,
    patience_s: float | None = None,
    note: Note = lambda _words: None,
) -> Iterator[Opened]:
    """Connect to the cluster that `folder`, the environment or this place names. `reads`: if it is
    down, a look at what it has left will do, and `note` is told so. `patience_s`: for the
    connection, and for each question; otherwise what an ensemble may need."""
    from holdfast.control.store.plane import ControlPlane
    from holdfast.launch import cluster as clusters

    found = clusters.find(folder)
    waits = {} if patience_s is None else _waits(patience_s)
    embedded = _down(found, _SERVER_S if patience_s is None else 0.0)
    if embedded is None:
        with found.session(**waits) as session:
            yield Opened(found, session, ControlPlane(session))
        return
    from holdfast.client import left_behind

    left_s = left_behind.left_s(embedded) if reads else None
    if left_s is None:
        raise _not_up(found)
    try:
        with left_behind.session_over(embedded, found.run_folder) as session:
            when = f"{texts.clock(left_s)}, {texts.ago(left_s)} ago"
            note(f"the cluster in {found.folder} is down; as it was left at {when}")
            yield Opened(found, session, ControlPlane(session), down=True)
    except BlockingIOError:
        raise _not_up(found, "it is being started now", "try again") from None


def check_up(found: Opened) -> None:
    """`Unavailable`, if the cluster was ended here since it was opened: nobody waits for it."""
    from holdfast.supervise import wanted

    if found.down or not wanted.is_down(found.cluster.folder):
        return
    if _down(found.cluster, 0.0) is not None:
        raise _not_up(found.cluster, "it was ended (holdfast down)")


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
