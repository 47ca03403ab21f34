"""A cluster of real processes that can be struck: servers, coordinators, agents and their workers.

The harness plays init: whatever it started is started again after a while. What agents start
(shims, workers, zygotes) is the system's own business.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from holdfast.cluster import create, opened
from holdfast.system.certificates import Authority
from tests.proofs.control import sabotage
from tests.proofs.control.engines import Plane, Store, make_plane
from tests.proofs.control.events import Event, Fault
from tests.proofs.control.faults import Strike
from tests.proofs.control.processes import Found, Kept, Traces
from tests.proofs.control.sabotage import command_of
from tests.servers import ServerProcess, port_block

T = TypeVar("T")
KEEP_S: Final = 0.05
REPOSITORY: Final = Path(__file__).parents[3]


class ProofCluster:
    """The processes. `note` is told what is done to them."""

    def __init__(
        self,
        folder: Path,
        plane: str,
        store: str,
        coordinators: int,
        capacities: dict[str, float],
        *,
        warm: frozenset[str] = frozenset(),
        sabotaged: str = "",
    ) -> None:
        self.folder = folder
        self.cluster = folder / "cluster"
        self.capacities = capacities
        self._warm = warm
        self._sabotaged = sabotaged
        self.plane: Plane = make_plane(plane, folder / "plane")
        self.store = Store(store, folder / "store")
        self.note: Callable[[Event], None] = lambda _event: None
        self.leading: Callable[[], str] = lambda: ""
        self.coordinators = [self._coordinator(n + 1) for n in range(coordinators)]
        self.agents = {node: self._agent(node, cpu) for node, cpu in capacities.items()}
        self.traces = {node: Traces(node, self.cluster / "nodes" / node) for node in capacities}
        self.unasked: list[str] = []
        self._servers_back: dict[int, float] = {}
        self._paused: list[tuple[float, Found]] = []
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._init = threading.Thread(target=self._keep, daemon=True)

    @property
    def environment(self) -> dict[str, str]:
        """That of everything which is started here."""
        path = os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
        own = {"PYTHONPATH": path.rstrip(os.pathsep), "HOLDFAST_LOG": "json"}
        return {**os.environ, **self.store.environment, **own}

    def _coordinator(self, number: int) -> Kept:
        name = f"c{number}"
        command = command_of(self._sabotaged, sabotage.COORDINATOR)
        command += ["--cluster", str(self.cluster)]
        log = self.folder / f"coordinator-{name}.log"
        return Kept(name, [*command, "--name", name], log, self.environment)

    def _agent(self, node: str, cpu: float) -> Kept:
        # Several proofs may run on one machine: each has some ports of its own.
        ports = port_block(list(self.capacities).index(node))
        command = command_of(self._sabotaged, sabotage.AGENT)
        command += ["--cluster", str(self.cluster)]
        command += ["--node", node, "--cpu", f"{cpu:g}", "--memory", str(1 << 36), "--gpu", "0"]
        command += ["--ports", f"{ports[0]}-{ports[-1]}"]
        if node in self._warm:
            command.append("--warm")
        return Kept(node, command, self.folder / f"agent-{node}.log", self.environment)

    @property
    def address(self) -> str:
        """The plane for `holdfast.coordination.connect`, as who the cluster's processes are there:
        once one of them has closed it, nobody else is let in."""
        return opened(self.cluster).coordination_here

    @property
    def credential(self) -> str:
        """The same for a client of ZooKeeper's family: what it shows, by the scheme `digest`."""
        access = opened(self.cluster).access()
        assert access is not None, "the cluster was made here, and has a secret"
        return access.credential

    # --- the beginning and the end ------------------------------------------------------------

    def start(self) -> None:
        self.plane.start()
        self.store.start()
        os.environ.update(self.store.environment)
        address, store = self.plane.address, self.store.address
        made = create(self.cluster, name="proof", coordination=address, store=store)
        Authority.make(made.authority_folder, made.name)
        self._init.start()

    def end(self) -> None:
        """Nothing is left running."""
        self._closed.set()
        if self._init.is_alive():
            self._init.join(60)
        for _, found in self._paused:
            found.resume()
        for kept in [*self.agents.values(), *self.coordinators]:
            kept.end()
        self.kill_workers()
        for server in self.plane.servers:
            server.kill()
        self.store.end()

    def kill_workers(self) -> None:
        """All that agents have started, and what that started."""
        for traces in self.traces.values():
            for found in [*traces.workers().values(), *traces.shims().values()]:
                found.kill()
        for found in self.zygotes():
            found.kill()

    def __enter__(self) -> ProofCluster:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.end()

    # --- init -----------------------------------------------------------------------------------

    def _keep(self) -> None:
        while not self._closed.wait(KEEP_S):
            with self._lock:
                self._keep_once()

    def _keep_once(self) -> None:
        now_s = time.monotonic()
        for kept in [*self.agents.values(), *self.coordinators]:
            code = kept.keep()
            if code is not None:
                self.unasked.append(f"{kept.name} ended by itself with code {code}")
                self.note(Fault(time.time(), "unasked", self.unasked[-1]))
        for number, server in enumerate(self.plane.servers):
            if server.process is None and now_s >= self._servers_back.get(number, 0.0):
                server.launch()
        for at_s, found in list(self._paused):
            if now_s >= at_s:
                self._paused.remove((at_s, found))
                if found.resume():
                    self.note(Fault(time.time(), "wake", found.name))

    def all_back(self) -> None:
        """Start at once whatever is away."""
        with self._lock:
            for kept in [*self.agents.values(), *self.coordinators]:
                kept.back_s = 0.0
            self._servers_back.clear()
            self._paused = [(0.0, found) for _, found in self._paused]

    # --- who is there -----------------------------------------------------------------------------

    def workers(self) -> list[Found]:
        return [one for traces in self.traces.values() for one in traces.workers().values()]

    def shims(self) -> list[Found]:
        return [one for traces in self.traces.values() for one in traces.shims().values()]

    def zygotes(self) -> list[Found]:
        """Processes that hold warm workers."""
        return [one for traces in self.traces.values() if (one := traces.zygote()) is not None]

    def leader(self) -> Kept | None:
        """The coordinator that leads, by what the plane says of it."""
        name = self.leading()
        return next((kept for kept in self.coordinators if kept.name == name and kept.alive), None)

    # --- striking ---------------------------------------------------------------------------------

    def strike(self, strike: Strike) -> list[str]:
        """Do it; the names of those who were struck, none if nobody of that kind is there."""
        with self._lock:
            struck = self._kill(strike) if strike.kill else self._pause(strike)
        for name in struck:
            kind = f"{'kill' if strike.kill else 'pause'} {strike.kind}"
            self.note(Fault(time.time(), kind, name))
        return struck

    def _kill(self, strike: Strike) -> list[str]:
        match strike.kind:
            case "worker":
                return _kill_one(self.workers(), strike.pick)
            case "workers":
                return [found.name for found in self.workers() if found.kill()]
            case "shim":
                return _kill_one(self.shims(), strike.pick)
            case "zygote":
                return _kill_one(self.zygotes(), strike.pick)
            case "agent":
                return _kill_kept([_picked(list(self.agents.values()), strike.pick)], strike.away_s)
            case "node":
                return self._kill_node(strike)
            case "leader" | "standby":
                leader = self.leader()
                leads = strike.kind == "leader"
                those = [one for one in self.coordinators if one.alive and (one is leader) == leads]
                return _kill_kept([_picked(those, strike.pick)] if those else [], strike.away_s)
            case "server":
                servers = [one for one in self.plane.servers if one.process is not None]
                return self._kill_servers(
                    [_picked(servers, strike.pick)] if servers else [], strike
                )
            case _:
                return self._kill_everything(strike)

    def _kill_node(self, strike: Strike) -> list[str]:
        """A machine: its agent and all that runs there, and then it is away."""
        node = _picked(list(self.agents), strike.pick)
        struck = _kill_kept([self.agents[node]], strike.away_s)
        traces = self.traces[node]
        zygote = traces.zygote()
        warm = [] if zygote is None else [zygote]
        for found in [*traces.shims().values(), *traces.workers().values(), *warm]:
            struck += [found.name] if found.kill() else []
        return struck

    def _kill_servers(self, servers: list[ServerProcess], strike: Strike) -> list[str]:
        for server in servers:
            self._servers_back[list(self.plane.servers).index(server)] = (
                time.monotonic() + strike.away_s
            )
            server.kill()
        return [f"server {server.port}" for server in servers]

    def _kill_everything(self, strike: Strike) -> list[str]:
        servers = [one for one in self.plane.servers if one.process is not None]
        struck = self._kill_servers(servers, strike)
        struck += _kill_kept([*self.coordinators, *self.agents.values()], strike.away_s)
        for found in [*self.shims(), *self.workers(), *self.zygotes()]:
            struck += [found.name] if found.kill() else []
        return struck

    def _pause(self, strike: Strike) -> list[str]:
        match strike.kind:
            case "worker":
                those = self.workers()
            case "agent":
                those = [one for kept in self.agents.values() if (one := kept.found)]
            case _:
                leader = self.leader()
                those = [one] if leader is not None and (one := leader.found) else []
        if not those:
            return []
        found = _picked(those, strike.pick)
        if not found.pause():
            return []
        self._paused.append((time.monotonic() + strike.away_s, found))
        return [f"{found.name} for {strike.away_s:.1f} s"]


def _picked(those: list[T], pick: float) -> T:
    return those[min(int(pick * len(those)), len(those) - 1)]


def _kill_one(those: list[Found], pick: float) -> list[str]:
    if not those:
        return []
    found = _picked(sorted(those, key=lambda one: one.name), pick)
    return [found.name] if found.kill() else []


def _kill_kept(those: list[Kept], away_s: float) -> list[str]:
    return [kept.name for kept in those if kept.kill(away_s)]
