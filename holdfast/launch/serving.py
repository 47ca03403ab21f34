"""A controller and a gateway on this machine, for a cluster that serves models.

    ensure(cluster, session)        # starts what is missing; returns when the gateway answers
    end(cluster, session, served)   # ends them, if nothing is served any more

A cluster that serves nothing has neither. `serving.json` in its folder says which gateways were
started here and where they listen, so that `holdfast up` starts them again at the same addresses.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Mapping, Set
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from holdfast.cluster import Cluster, Process, processes
from holdfast.cluster.registry import forget
from holdfast.cluster.ties import Tie
from holdfast.coordination import Membership, Session
from holdfast.launch import ending, wanted
from holdfast.launch.ending import Stopped
from holdfast.launch.processes import alone
from holdfast.launch.starting import (
    ENVOY,
    GATEWAY,
    ROLLOUT_CONTROLLER,
    StartedProcess,
    await_all,
    keep,
    start,
)
from holdfast.supervise import supervisor
from holdfast.supervise import wanted as wanted_here
from holdfast.supervise.wanted import WantedProcess
from holdfast.system import disk
from holdfast.wire.errors import Occupied, Usage
from holdfast.wire.limits import UP_LOOK_S, UP_S
from holdfast.wire.names import GATEWAYS_PATH
from holdfast.wire.plain import known_fields

# Where a gateway listens unless it is told; and how many ports after it are tried when it is taken.
GATEWAY_PORT: Final = 8_080
GATEWAY_PORTS_TRIED: Final = 100
# A gateway that was killed is still a member until its session ends. Who ends the last one waits so
# long for that: otherwise the next `serve` takes it for one of another machine.
GATEWAY_GONE_S: Final = 30.0

_FILE: Final = "serving.json"
FIRST: Final = "gateway-1"


@dataclass(frozen=True, slots=True)
class GatewayAddress:
    """Where a gateway listens (`host:port`), and in which region it is."""

    listen: str
    region: str = ""


def places(cluster: Cluster) -> dict[str, GatewayAddress]:
    """The gateways that were started on this machine, by name."""
    try:
        found = json.loads(_path(cluster).read_text())
    except FileNotFoundError:
        return {}
    return {
        name: GatewayAddress(**known_fields(GatewayAddress, place))
        for name, place in found["gateways"].items()
    }


def ensure(
    cluster: Cluster,
    session: Session,
    *,
    listen: str | None = None,
    region: str = "",
    together: int | None = None,
    supervised: bool = True,
    look: Callable[[str], None] = lambda _what: None,
) -> dict[str, str]:
    """See to it that the cluster has a controller and a gateway, and wait until they are there.

    `listen`: a gateway at this address on this machine; None: any gateway will do, and if the
    cluster has none, one at the first free port from 8080 on. `together`: so many share that
    address; None: as many as before. The addresses of all, by name. A supervisor keeps them alive
    unless `supervised` is False.
    """
    with alone(cluster, look):
        wanted.check(cluster)  # whoever had the turn before us may have ended everything
        started = [start_controller(cluster)]
        known = places(cluster)
        needed = _needed(cluster, session, known, listen, region)
        if together is not None:
            needed = sharing(needed, _normal(listen), together)
            _end_gateways(cluster, known.keys() - needed.keys())
        _write(cluster, needed or known)
        started += [start_gateway(cluster, name, place) for name, place in needed.items()]
        if supervised:
            keep(cluster, started)

    def ready() -> dict[str, str] | None:
        gateways = _gateways(session)
        if not gateways.keys() >= needed.keys() or not gateways:
            return None
        # Who ends them knows them by their records.
        return gateways if all(one.process is not None for one in started) else None

    return await_all(started, ready, "a gateway is ready", UP_S, lambda: look("a gateway"))


def end(
    cluster: Cluster,
    session: Session,
    served: Callable[[], bool],
    look: Callable[[str], None] = lambda _what: None,
) -> list[Stopped]:
    """End the gateways and controllers that `ensure` had started on this machine, with their
    Envoys; what has ended. Nothing, if something is `served`: asked when nobody else can start one.

    Those that somebody has started by hand stay. To be called again at any time.
    """
    with alone(cluster, look):
        if served():
            return []
        ours = {one.name for one in processes(cluster) if one.launched and one.kind == GATEWAY}
        ours |= places(cluster).keys()
        # Gateways first: nothing new comes.
        stopped = _end_gateways(cluster, ours)
        living = {one.name for one in processes(cluster) if one.kind == GATEWAY}
        known = wanted_here.read(cluster.folder)
        wanted_here.drop(cluster.folder, [key for key, one in known.items() if _serves(one)])
        parts = [
            one for one in processes(cluster) if one.launched and one.kind == ROLLOUT_CONTROLLER
        ]
        stopped += [ending.end(one) for one in parts]
        for record in processes(cluster, ended=True):
            if _serves(record):
                forget(cluster, record)
        _path(cluster).unlink(missing_ok=True)
        supervisor.ensure(cluster.folder)  # it looks at what is wanted now
        if stopped:
            look("the coordination plane to forget them")
            _until_gone(session, ours - living)
    return stopped


def again(cluster: Cluster) -> list[StartedProcess]:
    """Start what `ensure` had started before `holdfast down`; nothing, if nothing was served."""
    known = places(cluster)
    if not known:
        return []
    return [start_controller(cluster), *(start_gateway(cluster, *one) for one in known.items())]


def start_controller(
    cluster: Cluster, name: str = "controller-1", *, tie: Tie | None = None
) -> StartedProcess:
    return start(
        cluster, ROLLOUT_CONTROLLER, name, "holdfast.serve.controller", ["--name", name], tie
    )


def start_gateway(
    cluster: Cluster, name: str, place: GatewayAddress, *, tie: Tie | None = None
) -> StartedProcess:
    """A gateway. Its Envoy outlives it if it is killed, and is adopted by the next one."""
    words = ["--name", name, "--listen", place.listen]
    words += ["--region", place.region] if place.region else []
    return start(cluster, GATEWAY, name, "holdfast.serve.gateway", words, tie)


def sharing(
    needed: Mapping[str, GatewayAddress], listen: str | None, together: int
) -> dict[str, GatewayAddress]:
    """The gateways of `needed`, and as many more or fewer that `together` of them share each
    address, or only this one. Pure. `Usage`: none is to run on this machine."""
    if not needed:
        raise Usage(
            "no gateway runs on this machine",
            why="those of the cluster are on others",
            fix="say where one is to listen: --gateway HOST:PORT",
        )
    kept = dict(needed)
    for address in sorted({place.listen for place in needed.values()}):
        if listen not in (None, address):
            continue
        there = sorted((name for name in kept if kept[name].listen == address), key=_number)
        for name in there[together:]:
            del kept[name]
        for _ in range(together - len(there)):
            kept[_next_name(kept)] = kept[there[0]]
    return kept


# --- private ------------------------------------------------------------------------------------


def _end_gateways(cluster: Cluster, names: Set[str]) -> list[Stopped]:
    """End gateways that `ensure` had started, with their Envoys; what has ended."""
    # First this: nobody starts again what we end.
    wanted_here.drop(cluster.folder, [f"{GATEWAY} {name}" for name in names])
    stopped = [
        ending.end(one)
        for one in processes(cluster)
        if one.launched and one.kind == GATEWAY and one.name in names
    ]
    # An Envoy outlives a gateway that was killed.
    living = {one.name for one in processes(cluster) if one.kind == GATEWAY}
    envoys = {f"{name}.envoy" for name in names - living}
    stopped += [
        ending.end(one) for one in processes(cluster) if one.kind == ENVOY and one.name in envoys
    ]
    for record in processes(cluster, ended=True):
        if record.name in envoys or (record.kind == GATEWAY and record.name in names - living):
            forget(cluster, record)
    return stopped


def _number(name: str) -> int:
    """The number in a name of ours; 0: somebody else has named it."""
    last = name.rpartition("-")[2]
    return int(last) if last.isdecimal() else 0


def _next_name(known: Mapping[str, GatewayAddress]) -> str:
    return f"gateway-{1 + max(map(_number, known), default=0)}"


def _serves(process: Process | WantedProcess) -> bool:
    return process.kind in (GATEWAY, ROLLOUT_CONTROLLER)


def _until_gone(session: Session, names: Set[str]) -> None:
    deadline_s = time.monotonic() + GATEWAY_GONE_S
    while names & _gateways(session).keys() and time.monotonic() < deadline_s:
        time.sleep(UP_LOOK_S)


def _needed(
    cluster: Cluster,
    session: Session,
    known: Mapping[str, GatewayAddress],
    listen: str | None,
    region: str,
) -> dict[str, GatewayAddress]:
    """The gateways that must run here: those of before, and one more if that is needed."""
    if listen is None and known:
        return dict(known)
    if listen is None:
        if _gateways(session):
            return {}  # of another machine
        return {FIRST: GatewayAddress(_free(cluster.listen), region)}
    host, port = _address(listen)
    there = [name for name, place in known.items() if place.listen == f"{host}:{port}"]
    if there:
        place = GatewayAddress(f"{host}:{port}", region or known[there[0]].region)
        return {**known, **dict.fromkeys(there, place)}
    if not _is_free(host, port):
        raise Occupied(
            f"a gateway cannot listen at {listen}",
            why="another process does, or it is not an address of this machine",
            fix="give another port: --gateway HOST:PORT",
        )
    return {**known, _next_name(known): GatewayAddress(f"{host}:{port}", region)}


def _gateways(session: Session) -> dict[str, str]:
    """Those that have a session, with their addresses."""
    members = Membership(session, GATEWAYS_PATH).members()
    return {name: str(member.data["address"]) for name, member in members.items()}


def _path(cluster: Cluster) -> Path:
    return cluster.folder / _FILE


def _write(cluster: Cluster, known: Mapping[str, GatewayAddress]) -> None:
    fields = {"gateways": {name: asdict(place) for name, place in known.items()}}
    disk.replace_durably(_path(cluster), (json.dumps(fields, indent=2) + "\n").encode())


def _normal(listen: str | None) -> str | None:
    """As it stands in a place."""
    return None if listen is None else "{}:{}".format(*_address(listen))


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or not 0 < int(port) < 65_536:
        raise Usage(f"--gateway {text} is not HOST:PORT", fix="--gateway 127.0.0.1:8080")
    return host or "127.0.0.1", int(port)


def _free(host: str) -> str:
    """The first port from the usual one on where nobody listens."""
    for port in range(GATEWAY_PORT, GATEWAY_PORT + GATEWAY_PORTS_TRIED):
        if _is_free(host, port):
            return f"{host}:{port}"
    last = GATEWAY_PORT + GATEWAY_PORTS_TRIED - 1
    raise Occupied(
        f"every port from {GATEWAY_PORT} to {last} of {host} is in use",
        fix="name one for the gateway: --gateway HOST:PORT",
    )


def _is_free(host: str, port: int) -> bool:
    try:
        with socket.create_server((host.strip("[]"), port)):
            return True
    except OSError:
        return False
