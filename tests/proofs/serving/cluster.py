"""The real processes of a service, and the ways in which they die."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from holdfast.launch import ending, health, local, processes, serving
from holdfast.launch.local import AgentSize
from holdfast.serve.gateway.admin import Admin
from holdfast.serve.gateway.main import folder_of
from holdfast.serve.records import (
    Limits,
    Load,
    Replica,
    RolloutPlan,
    RolloutPolicy,
    RolloutStage,
    ServiceSpec,
)
from holdfast.serve.services import Services
from holdfast.wire.errors import Missing
from holdfast.wire.resources import Resources
from tests.proofs.patience import patiently
from tests.proofs.serving.models import MODEL, Publisher
from tests.servers import free_port
from tests.waiting import eventually

SERVICE: Final = "answer"
PATIENCE_S: Final = 300.0
TIMEOUT_S: Final = 30.0
LOOK_S: Final = 0.02
# The machine is busy with the load and with replicas that die: latency says nothing of a version.
_POLICY: Final = RolloutPolicy(
    steps=(1_000, 5_000), hold_s=0.4, requests_min=10, latency_slack_ms=60_000.0
)


class Violation(AssertionError):
    """A promise was broken."""


class Stuck(AssertionError):
    """What had to come did not come."""


def until(what: str, true: Callable[[], bool], patience_s: float = PATIENCE_S) -> float:
    """Wait; how long it took."""
    began_s = time.monotonic()
    try:
        eventually(lambda: patiently(true), what, patience_s)
    except AssertionError as error:
        raise Stuck(str(error)) from None
    return time.monotonic() - began_s


class ServiceCluster:
    """A cluster with one service behind one gateway. `address`: where it is asked."""

    def __init__(self, folder: Path, replicas: int) -> None:
        self.cluster = local.make(folder / "cluster")
        self._replicas = replicas
        self.address = ("127.0.0.1", free_port())
        self._closing: list[Callable[[], object]] = [lambda: ending.down(self.cluster, force=True)]
        try:
            local.up(self.cluster, size=AgentSize(cpu=float(2 * replicas)))
            session = self.session = self.cluster.session()
            self._closing.insert(0, session.close)
            serving.ensure(self.cluster, session, listen=":".join(map(str, self.address)))
            self.services = Services(session, "proof")
            self.publisher = Publisher(self.cluster, session, folder / "code")
            first = self.publisher.publish()
            self.services.create(
                ServiceSpec(
                    SERVICE,
                    MODEL,
                    str(first),
                    replicas_min=replicas,
                    replicas_max=replicas,
                    resources=Resources(cpu=0.5),
                    limits=Limits(timeout_s=TIMEOUT_S),
                    policy=_POLICY,
                )
            )
            self.await_version(first)
            self.await_replicas()
        except BaseException:
            self.close()
            raise

    # --- what is true ---------------------------------------------------------------------------

    def plan(self) -> RolloutPlan:
        found = patiently(lambda: self.services.plan(SERVICE))
        if found is None:
            raise Missing("no plan yet", fix="wait")
        return found

    def ready(self, version: int | None = None) -> list[Replica]:
        """Replicas that can answer, with that version or with the stable one. A dead one says so
        until its session ends."""
        number = version or self.plan().stable or 0
        found = patiently(lambda: self.services.replicas(SERVICE))
        return [
            one
            for one in found.values()
            if number in one.versions
            and one.versions[number].state is Load.READY
            and not one.draining
        ]

    def living(self) -> dict[int, int]:
        """The processes of the replicas that can answer: by worker."""
        found = {one.worker: _listener(one.http_port) for one in self.ready()}
        return {worker: pid for worker, pid in found.items() if pid is not None}

    def gateway_lives(self) -> bool:
        """Whether somebody tells Envoy of new replicas; Envoy itself goes on without."""
        return any(one.kind == "gateway" for one in processes.processes(self.cluster))

    def await_version(self, version: int) -> float:
        """Until that version alone is asked for, by every gateway; how long it took."""

        def settled() -> bool:
            plan = self.plan()
            if (plan.stage, plan.stable) != (RolloutStage.STEADY, version):
                return False
            gateways = self.services.gateways()
            applied = [one.applied.get(SERVICE, 0) for one in gateways.values()]
            return bool(applied) and min(applied) >= plan.number

        return until(f"version {version} alone is served", settled)

    def await_failed(self, version: int) -> None:
        """Until the controller has taken it back."""
        until(f"version {version} has failed", lambda: version in self.plan().failed)

    def await_replicas(self) -> None:
        until("all replicas are ready", lambda: len(self.ready()) == self._replicas)

    # --- commands -------------------------------------------------------------------------------

    def command(self, *words: str) -> str:
        """What `holdfast WORDS` says, as its users run it; it must do what it is asked."""
        line = [sys.executable, "-m", "holdfast", *words, "--cluster", str(self.cluster.folder)]
        done = subprocess.run(line, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        if done.returncode:
            raise Stuck(f"holdfast {' '.join(words)}: {done.stderr}")
        return done.stdout

    def listeners(self, service: str) -> dict[int, int]:
        """The processes of a service's replicas, by worker."""
        found = patiently(lambda: self.services.replicas(service))
        pids = {one.worker: _listener(one.http_port) for one in found.values()}
        return {worker: pid for worker, pid in sorted(pids.items()) if pid is not None}

    # --- deaths ---------------------------------------------------------------------------------

    def kill(self, *kinds: str) -> None:
        """SIGKILL to processes of these kinds, at once. Nobody but they themselves helps them."""
        killed = [one for one in processes.processes(self.cluster) if one.kind in kinds]
        for process in killed:
            process.send(signal.SIGKILL)
        for process in killed:
            process.wait(PATIENCE_S)

    def await_back(self) -> float:
        """Until everything runs again, and does what it is there for; how long it took."""
        kinds = {"coordinator", "controller", "agent"}

        def back() -> bool:
            found = processes.processes(self.cluster)
            if health.missing(self.cluster) or not kinds <= {one.kind for one in found}:
                return False
            here = {one.kind for one in found}
            at_work = [one.facts.get("term") for one in found if one.kind in kinds]
            return all(at_work) and here >= {"gateway", "envoy", "supervisor", "server"}

        return until("everything is back", back)

    def await_envoys(self, count: int) -> None:
        """Until so many Envoys take requests."""

        def there() -> bool:
            found = [one for one in processes.processes(self.cluster) if one.kind == "envoy"]
            folders = [folder_of(self.cluster, one.name.removesuffix(".envoy")) for one in found]
            return len(found) == count and all(Admin(folder).ready() for folder in folders)

        until(f"{count} Envoys take requests", there)

    # --- the end --------------------------------------------------------------------------------

    def close(self) -> None:
        closing, self._closing = self._closing, []
        for end in closing:
            end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, _: TracebackType | None
    ) -> None:
        self.close()


def _listener(port: int) -> int | None:
    """The process that listens on this port of the loopback; None: nobody does."""
    wanted = f":{port:04X}"
    inodes = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[1].endswith(wanted) and fields[3] == "0A":
            inodes.add(f"socket:[{fields[9]}]")
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        try:
            held = {str(handle.readlink()) for handle in (folder / "fd").iterdir()}
        except OSError:
            continue  # it has ended meanwhile
        if held & inodes:
            return int(folder.name)
    return None
