"""From a folder to the cluster that is meant, connected: what every verb stands on."""

from __future__ import annotations

import difflib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from holdfast.client import texts
from holdfast.wire.errors import Missing, Unavailable
from holdfast.wire.limits import CONNECT_TIMEOUT_S, SERVER_START_S

if TYPE_CHECKING:
    from holdfast.agent.credential_store import NodeCredentials
    from holdfast.control.decide.facts import JobRecord
    from holdfast.control.rpc.observing import NodeSeen
    from holdfast.control.store.plane import ControlPlane
    from holdfast.coordination import MemberInfo, Session
    from holdfast.launch.cluster import Cluster
    from holdfast.serve.records import ServiceSpec
    from holdfast.serve.services import Services

# What runs is asked of the leader; nobody waits for one longer than a person would.
LEADER_ASK_S: Final = 2.0

Note = Callable[[str], None]
# A server that was killed is there again within a second, unless the machine is busy.
_SERVER_S: Final = 5.0
_SERVER_LOOK_S: Final = 0.05
# What belongs to a server that lives, or to whoever starts one.
_NOT_STATE: Final = ("ended", "lock", "server.json", "server.log", "starting", "trimming")
_LOG: Final = "log-*"


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

    def credentials(self) -> NodeCredentials:
        """Who we are to coordinators and agents."""
        from holdfast.client.credentials import credentials_of

        return credentials_of(self.cluster)

    def job(self, name: str) -> JobRecord:
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

    def service(self, name: str) -> ServiceSpec:
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
        from holdfast.control.rpc.observer import nodes
        from holdfast.wire.errors import HoldfastError

        if self.down:
            return [], "the cluster is down"
        try:
            return nodes(self.session, self.credentials(), LEADER_ASK_S), ""
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

    written_s = _last_written_s(embedded) if reads else None
    if written_s is None:
        raise _not_up(found)
    try:
        with _session_with_copy(embedded, found.run_folder) as session:
            when = f"{texts.clock(written_s)}, {texts.ago(written_s)} ago"
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


def _last_written_s(folder: Path) -> float | None:
    """When the server over this folder last wrote; None: there never was one."""
    written = [path.stat().st_mtime for path in folder.glob(_LOG)]
    return max(written, default=None)


@contextmanager
def _session_with_copy(folder: Path, scratch: Path) -> Iterator[Session]:
    """A session with a private server over a copy of `folder`, which is made in `scratch`.
    `BlockingIOError`: a server has taken the folder meanwhile.

    So nothing of the cluster is changed or started, and whoever starts it meanwhile does not
    notice. If this process is killed, the server ends by itself.
    """
    from holdfast.client.private_server import server_over
    from holdfast.coordination import connect

    with tempfile.TemporaryDirectory(prefix="look-", dir=scratch) as private:
        data = Path(private) / "coordination"
        _copy(folder, data)
        deadline_s = time.monotonic() + SERVER_START_S
        with (
            server_over(data, deadline_s) as address,
            connect(
                f"zk://{address}?secret_file={data}/access", timeout_s=CONNECT_TIMEOUT_S
            ) as session,
        ):
            yield session


def _copy(folder: Path, data: Path) -> None:
    """With the folder's lock shared: while it is, no server begins to write there."""
    handle = os.open(folder / "lock", os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        shutil.copytree(folder, data, ignore=shutil.ignore_patterns(*_NOT_STATE))
        data.chmod(0o700)
    finally:
        os.close(handle)
