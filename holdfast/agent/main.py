"""An agent as a process: options in, an exit code out.

    python -m holdfast.agent --cluster DIR --node NAME

SIGTERM ends it, and its workers go on: the next agent over its folder adopts them. SIGINT, the end
of a parent that it is tied to, and SIGTERM with `--stop-workers` end its workers too; SIGQUIT does
so without any notice.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from holdfast.agent import credential_store, devices, privacy
from holdfast.agent.assembly import LocalAgent
from holdfast.agent.folders import Folders
from holdfast.agent.grpc_transport import GrpcTransport
from holdfast.agent.holding import Holding
from holdfast.agent.launching import Bounds, BundleFolder, ReplicaAccess
from holdfast.agent.log_service import LogService
from holdfast.agent.log_topic import LogTopic
from holdfast.agent.plane_session import opener
from holdfast.agent.presence import Presence
from holdfast.agent.slots import Machine
from holdfast.agent.topics import WorkerTopics
from holdfast.agent.uplink import Uplink
from holdfast.cluster import Cluster, Registration, opened, register, ties
from holdfast.coordination import Session, access, tls
from holdfast.coordination.address import parse as parse_coordination
from holdfast.coordination.address import with_secret_file
from holdfast.storage import bundles
from holdfast.storage.address import FolderAddress, parse
from holdfast.system import logs
from holdfast.system.certificates import Authority
from holdfast.system.disk import make_folder
from holdfast.system.tasks import until_one_ends
from holdfast.wire.errors import Missing, Usage
from holdfast.wire.limits import (
    AGENT_AWAY_NOTICE_S,
    AGENT_AWAY_S,
    DOWN_NOTICE_S,
    KILL_AGAIN_S,
    REPLICA_AWAY_S,
    TIED_END_S,
    UP_LOOK_S,
)
from holdfast.wire.names import checked_name
from holdfast.wire.resources import Resources

# Workers that may share one GPU: each needs a context of some hundred megabytes there.
GPU_SHARE_MAX: Final = 64

log = logs.get(__name__)


@dataclass(frozen=True, slots=True)
class Options:
    """How an agent is started. None: what the machine has."""

    cluster: Path
    node: str
    cpu: float | None = None
    memory_bytes: int | None = None
    gpu: int | None = None
    host: str | None = None
    ports: tuple[int, int] | None = None
    away_s: float = AGENT_AWAY_S
    away_notice_s: float = AGENT_AWAY_NOTICE_S
    notice_s: float = DOWN_NOTICE_S
    stop_workers: bool = False
    warm: bool = False
    tied: bool = False
    region: str = ""
    gpu_share: int = 1
    disk_bytes: int | None = None


def parsed(arguments: Sequence[str]) -> Options:
    parser = argparse.ArgumentParser(prog="python -m holdfast.agent")
    parser.add_argument("--cluster", type=Path, required=True, help="the cluster's folder")
    parser.add_argument("--node", required=True, help="this node's name in the cluster")
    parser.add_argument("--cpu", type=float, help="cores to give away; may be more than there are")
    parser.add_argument("--memory", type=int, metavar="BYTES", help="memory to give away")
    parser.add_argument("--gpu", type=int, help="GPUs to give away; all that are free by default")
    parser.add_argument("--gpu-share", type=int, default=1, help="workers that share each GPU")
    parser.add_argument("--disk", type=int, metavar="BYTES", help="disk to give away")
    parser.add_argument("--host", help="where workers listen, and where others reach them")
    parser.add_argument("--ports", metavar="FIRST-LAST", help="a range of its own for workers")
    parser.add_argument("--away", type=float, default=AGENT_AWAY_S, metavar="SECONDS")
    parser.add_argument("--away-notice", type=float, default=AGENT_AWAY_NOTICE_S, metavar="SECONDS")
    parser.add_argument("--notice", type=float, default=DOWN_NOTICE_S, metavar="SECONDS")
    parser.add_argument("--stop-workers", action="store_true", help="SIGTERM ends workers too")
    parser.add_argument("--warm", action="store_true", help="import torch for workers beforehand")
    parser.add_argument("--region", default="", help="where this machine is: replicas are told")
    parser.add_argument("--tied", action="store_true", help="end with the parent (its pipe: stdin)")
    given = parser.parse_args(arguments)
    return Options(
        cluster=given.cluster,
        node=checked_name("node", given.node),
        cpu=given.cpu,
        memory_bytes=given.memory,
        gpu=given.gpu,
        host=given.host,
        ports=_range(given.ports) if given.ports else None,
        away_s=given.away,
        away_notice_s=given.away_notice,
        notice_s=given.notice,
        stop_workers=given.stop_workers,
        warm=given.warm,
        tied=given.tied,
        region=checked_name("region", given.region) if given.region else "",
        gpu_share=_share(given.gpu_share),
        disk_bytes=given.disk,
    )


def serve(options: Options) -> int:
    """Run an agent until it is told to stop. 0 if all is well.

    Raises what keeps it from starting: the folder has an agent, no credentials, GPUs are taken.
    """
    cluster = opened(options.cluster)
    with register(cluster, "agent", options.node, kept=not options.tied) as registration:
        return asyncio.run(_Main(options, cluster, registration).run())


class _Main:
    """One agent's life."""

    def __init__(self, options: Options, cluster: Cluster, registration: Registration) -> None:
        self._options = options
        self._cluster = cluster
        self._registration = registration
        self._host = options.host or cluster.listen
        self._home = cluster.node_folder(options.node)
        self._stop = asyncio.Event()
        self._with_workers = False
        self._at_once = False

    async def run(self) -> int:
        self._listen_to_signals()
        options, cluster = self._options, self._cluster
        async with AsyncExitStack() as stack:
            credentials = await asyncio.to_thread(_credentials, cluster, options.node)
            holding = Holding(self._home)
            stack.callback(holding.close)
            machine = await asyncio.to_thread(self._machine, holding)
            topics = WorkerTopics(cluster)
            agent = await LocalAgent.start(
                self._home,
                options.node,
                machine,
                _bundles(cluster),
                store=cluster.store,
                coordination=await asyncio.to_thread(_coordination, cluster, self._home),
                region=options.region,
                warm=options.warm,
                bounds=_bounds(options),
                privacy=await asyncio.to_thread(_privacy, options),
                keep=(str(cluster.folder), *_stores(cluster)),
                stores=_stores(cluster),
                replica_access=await asyncio.to_thread(_replica_access, cluster),
                topics=topics.environment,
            )
            stack.push_async_callback(agent.close)
            service = await LogService.start(self._home / "logs", credentials, self._host)
            stack.push_async_callback(service.close)
            data = self._data(machine.capacity, service.address)
            self._registration.note(**data)
            sharing = agent.coordination

            def attach(session: Session) -> None:
                sharing.attach(session)
                topics.attach(session)

            stack.callback(topics.close)
            stack.enter_context(LogTopic(Folders(self._home), options.node, topics.connect))
            presence = Presence(opener(cluster.session, attach), options.node, data)
            transport = GrpcTransport(options.node, credentials)
            uplink = Uplink(agent, options.node, transport, presence.session_id)
            await until_one_ends(
                self._stop.wait(),
                presence.run(uplink.point_to),
                uplink.run(),
                agent.failed(),
                sharing.run(),
                self._tell(uplink),
                name="agent",
            )
            if self._with_workers:
                await presence.leave()
                # Nobody can order anything any more.
                await agent.stop_workers(0.0 if self._at_once else options.notice_s)
                holding.release()
        log.info("the agent has ended", node=options.node, workers_too=self._with_workers)
        return 0

    async def _tell(self, uplink: Uplink) -> None:
        """Say in our record whether we are connected, for whoever waits for us or wonders."""
        while True:
            contact, trouble = uplink.connected_to, uplink.trouble
            self._registration.note(
                leader=contact.address if contact else "",
                term=contact.term if contact else 0,
                trouble="" if contact or not trouble else str(trouble),
            )
            await asyncio.sleep(UP_LOOK_S if contact is None else 10 * UP_LOOK_S)

    # --- the machine ----------------------------------------------------------------------------

    def _machine(self, holding: Holding) -> Machine:
        options = self._options
        gpus = holding.gpus(devices.gpus(), options.gpu)
        cpu = devices.cpu() if options.cpu is None else options.cpu
        memory = devices.memory_bytes() if options.memory_bytes is None else options.memory_bytes
        disk = devices.disk_bytes(self._home) if options.disk_bytes is None else options.disk_bytes
        capacity = Resources(cpu, memory, len(gpus) * options.gpu_share, disk)
        first, last = options.ports or self._ports(holding)
        return Machine(capacity, devices.cores(), gpus, self._host, first, last, options.gpu_share)

    def _ports(self, holding: Holding) -> tuple[int, int]:
        """The same range as last time, if it can be: adopted workers have ports of it."""
        note = self._home / "ports.json"
        try:
            before = int(json.loads(note.read_text()))
        except (FileNotFoundError, ValueError, TypeError):
            before = None
        first, last = holding.ports(before)
        make_folder(self._home, 0o700)
        note.write_text(json.dumps(first))
        return first, last

    def _data(self, capacity: Resources, address: str) -> dict[str, Any]:
        """What everybody may know of this node."""
        region = {"region": self._options.region} if self._options.region else {}
        return {"address": address, "host": self._host, "capacity": asdict(capacity), **region}

    # --- stopping -------------------------------------------------------------------------------

    def _listen_to_signals(self) -> None:
        loop, options = asyncio.get_running_loop(), self._options

        def stop(with_workers: bool) -> None:
            self._with_workers = self._with_workers or with_workers
            self._stop.set()

        loop.add_signal_handler(signal.SIGTERM, stop, options.stop_workers)
        loop.add_signal_handler(signal.SIGINT, stop, True)

        def stop_at_once() -> None:
            self._at_once = True
            stop(True)

        loop.add_signal_handler(signal.SIGQUIT, stop_at_once)
        if options.tied:

            def parent_ended() -> None:
                if not loop.is_closed():
                    loop.call_soon_threadsafe(stop, True)

            ties.watch(parent_ended, options.notice_s + KILL_AGAIN_S + TIED_END_S)


def _bounds(options: Options) -> Bounds:
    """One that was told how long workers go on without it means replicas too."""
    replicas_s = REPLICA_AWAY_S if options.away_s == AGENT_AWAY_S else options.away_s
    return Bounds(options.away_s, replicas_s, options.away_notice_s)


def _privacy(options: Options) -> privacy.Privacy:
    """A tied agent has the one job of the person whom it is tied to: what that puts into /tmp is
    meant to be found there."""
    if options.tied:
        return privacy.Privacy("", "the one job here is the person's own")
    if os.environ.get(privacy.TMP_VARIABLE) == privacy.SHARED:
        return privacy.Privacy("", f"{privacy.TMP_VARIABLE}={privacy.SHARED} was asked for")
    found = privacy.found()
    if not found.kind:
        log.warning("workers share /tmp with others", reason=found.reason, fix=privacy.FIX)
    return found


def _stores(cluster: Cluster) -> tuple[str, ...]:
    """The folder of the store, if it is one."""
    store = parse(cluster.store)
    return (str(store.folder),) if isinstance(store, FolderAddress) else ()


def _bundles(cluster: Cluster) -> BundleFolder:
    blobs = cluster.blobs()
    return lambda digest: bundles.unpack(blobs, digest, cluster.bundles_folder)


def _coordination(cluster: Cluster, home: Path) -> str:
    """The plane as workers reach it: with a credential of their own, for what they need there, in a
    file. The secret of the cluster is not for them."""
    ours = cluster.access()
    if ours is None:
        return cluster.coordination_for_others
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = home / access.NAME
    plane = cluster.coordination_for_others
    access.keep(path, tls.for_workers(ours, parse_coordination(plane)), anew=True)
    return with_secret_file(plane, path)


def _replica_access(cluster: Cluster) -> ReplicaAccess | None:
    """What replicas of a service show to the plane: each service has a secret of its own."""
    ours, plane = cluster.access(), parse_coordination(cluster.coordination_for_others)
    if ours is None:
        return None
    return lambda service: tls.for_workers(ours, plane, service).document()


def _credentials(cluster: Cluster, node: str) -> credential_store.CredentialStore:
    """The node's credentials. Where the cluster was made, new ones are made when they are due."""
    folder = cluster.node_credentials_folder(node)
    if not cluster.is_home:
        return credential_store.CredentialStore.open(folder)
    authority = Authority.open(cluster.authority_folder)
    try:
        found = credential_store.CredentialStore.open(folder)
    except Missing:
        return credential_store.made_by(authority, folder, node)
    if authority.now_s() >= found.renewal_s:
        return credential_store.made_by(authority, folder, node)
    return found


def _share(count: int) -> int:
    if not 1 <= count <= GPU_SHARE_MAX:
        raise Usage(f"--gpu-share {count} is not from 1 to {GPU_SHARE_MAX}", fix="--gpu-share 2")
    return count


def _range(text: str) -> tuple[int, int]:
    first, dash, last = text.partition("-")
    if not dash or not first.isdigit() or not last.isdigit() or not 0 < int(first) < int(last):
        raise Usage(
            f"--ports {text} is not a range of ports", fix="write it as FIRST-LAST: 21000-21999"
        )
    return int(first), int(last)
