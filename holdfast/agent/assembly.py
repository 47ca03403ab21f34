"""An agent of this machine, made of the real parts: files, processes, sockets, threads."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final

from holdfast.agent import cgroups
from holdfast.agent.agent import Agent, recovered
from holdfast.agent.channel import Channel
from holdfast.agent.coordination import Coordination
from holdfast.agent.disk_use import DiskWatch
from holdfast.agent.events import BeginProbes, Key
from holdfast.agent.folders import Folders
from holdfast.agent.journal import Journal
from holdfast.agent.launching import (
    Bounds,
    BundleFolder,
    Launcher,
    ReplicaAccess,
    TopicsEnvironment,
    WorkerContext,
)
from holdfast.agent.ports import Equipment
from holdfast.agent.privacy import Privacy
from holdfast.agent.probing import Prober
from holdfast.agent.processes import LinuxProcesses
from holdfast.agent.slots import Machine
from holdfast.system import logs
from holdfast.system.clock import Clock, SystemClock

_NO_PRIVACY: Final = Privacy("", "it was not asked for")

log = logs.get(__name__)


class LocalWatchers:
    """Probes, disk use, and what workers share: each until its worker has ended."""

    def __init__(self, prober: Prober, disk: DiskWatch, coordination: Coordination) -> None:
        self._prober = prober
        self._disk = disk
        self.coordination = coordination

    def begin_probes(self, action: BeginProbes) -> None:
        self._prober.begin(action)

    def watch_disk(self, key: Key, bytes_max: int) -> None:
        self._disk.begin(key, bytes_max)

    def share(self, key: Key, queue: str, body: Any) -> None:
        self.coordination.receive(key, queue, body)

    def end(self, key: Key) -> None:
        self._prober.end(key)
        self._disk.end(key)
        self.coordination.ended(key)

    async def close(self) -> None:
        await self._prober.close()
        await self._disk.close()
        await self.coordination.close()


class LocalAgent(Agent):
    """Made by `start`. `coordination`: what its workers share in the plane."""

    coordination: Coordination
    _lock: int

    @classmethod
    async def start(
        cls,
        folder: Path,
        node: str,
        machine: Machine,
        bundle_folder: BundleFolder,
        *,
        store: str = "",
        coordination: str = "",
        region: str = "",
        warm: bool = False,
        clock: Clock | None = None,
        bounds: Bounds | None = None,
        privacy: Privacy = _NO_PRIVACY,
        keep: tuple[str, ...] = (),
        stores: tuple[str, ...] = (),
        replica_access: ReplicaAccess | None = None,
        topics: TopicsEnvironment | None = None,
    ) -> LocalAgent:
        """Take the folder, recover from its journal, find the living workers, and go on.

        `store` and `coordination` are the addresses of the blobs and of the plane, `region` is
        where this machine is: workers are told all of it. `warm`: torch is imported for them from
        now on, not only when the first wants it. `privacy`: how workers get a /tmp of their own;
        they see the folders `keep` though these lie in it, and write to those of `stores`.
        `replica_access`: what a replica of a service shows to the plane; None: as all workers.
        `topics`: what a worker is told of topics, with its credentials put into its folder.
        When it returns, `snapshot` is complete. `Occupied`: another agent has the folder.
        """
        folders = Folders(folder)
        folders.make()
        lock = folders.take()
        try:
            journal, recovery = Journal.open(folders.home)
        except BaseException:
            os.close(lock)
            raise
        if recovery.cut_bytes:
            log.warning("an unfinished batch was cut off", bytes=recovery.cut_bytes)
        if recovery.unknown:
            kinds = sorted({str(record["kind"])[:50] for record in recovery.unknown})
            log.warning("a newer version wrote to the journal; that is kept", kinds=kinds[:20])
        log.info("whether workers have a /tmp of their own", **privacy._asdict())
        places = (privacy, keep, stores)
        place = WorkerContext(
            machine.host, store, warm, region, coordination, *places, replica_access, topics
        )
        clock = clock or SystemClock()
        # One thread: the journal has one writer, and its order is the order of events.
        disk = ThreadPoolExecutor(1, "holdfast-journal")
        equip = partial(_equipment, node, folders, bounds or Bounds(), place, bundle_folder)
        state = recovered(node, machine, recovery.entries, clock)
        agent = cls(state, journal, clock, disk, equip)
        agent._lock = lock
        await agent.recover()
        return agent

    async def close(self) -> None:
        await super().close()
        os.close(self._lock)


def _equipment(
    node: str,
    folders: Folders,
    bounds: Bounds,
    place: WorkerContext,
    bundle_folder: BundleFolder,
    agent: LocalAgent,
) -> Equipment:
    found = cgroups.find()
    log.info("how workers are limited", groups=bool(found.groups), reason=found.reason)
    channel = Channel(agent.take, agent.tell, agent.share)
    agent.coordination = Coordination(node, channel.send)
    prober = Prober(place.host, folders.launch, agent.tell, agent.died)
    disk = DiskWatch(folders.worker, agent.tell, agent.died)
    return Equipment(
        folders,
        LinuxProcesses(),
        Launcher(folders, found.groups, bounds, place, bundle_folder, agent.tell),
        channel,
        LocalWatchers(prober, disk, agent.coordination),
    )
