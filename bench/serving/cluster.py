"""A cluster of ours that serves, with every process that its users would have: coordination server,
coordinator, agent, controller, gateway and replicas. Or only a gateway before servers of a bench.

The gateway is the one of `holdfast serve`, but for its access log: nobody here writes one.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np

from bench.serving import work
from bench.serving.connections import Address
from bench.serving.contestants import MARK, ROOT, SCRIPTS, START_S, Broken, free_port
from holdfast.client.service_waits import SERVE_LOOK_S
from holdfast.coordination import Facts, Member, Membership
from holdfast.launch import serving
from holdfast.launch.ending import down
from holdfast.launch.local import AgentSize, make, start_server, up
from holdfast.models import making
from holdfast.models.drafts import Content, VersionDraft
from holdfast.models.records import ModelKind, Version
from holdfast.models.registry import Registry
from holdfast.serve.protocol.marks import SECRET
from holdfast.serve.records import (
    WEIGHT_TOTAL,
    Load,
    Loaded,
    Replica,
    RolloutPlan,
    RolloutPolicy,
    RolloutStage,
    ServiceSpec,
    Variant,
    plan_path,
    replicas_path,
    service_path,
)
from holdfast.serve.services import Services
from holdfast.storage import bundles
from holdfast.wire import documents
from holdfast.wire.resources import Resources

# As often as `holdfast rollout` looks: whoever measures is no more in the way than users are.
LOOK_S: Final = SERVE_LOOK_S
# Agents give away what we say; the machine's cores are shared by all as the kernel likes.
AGENT_SIZE: Final = AgentSize(cpu=16.0)
SMALL_SHARE: Final = Resources(cpu=0.5)
QUICK: Final = RolloutPolicy(steps=(), hold_s=0.0)
BATCH: Final = work.BATCH_MAX

T = TypeVar("T")


class ServingCluster:
    """The cluster of one measurement, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        # For whatever is started from here on: agents, and what they start.
        os.environ |= {"OMP_NUM_THREADS": "1", MARK: str(folder)}
        self.folder = folder
        self.cluster = make(folder / "cluster", name="bench")
        start_server(self.cluster)
        self.session = self.cluster.session()
        self.facts = Facts(self.session)
        self.services = Services(self.session, "bench")
        self.registry = Registry(self.session, self.cluster.blobs(), "bench")
        self.gateway: Address = ("127.0.0.1", free_port())
        self._gateways: list[subprocess.Popen[bytes]] = []
        self._members: list[Member] = []

    def close(self) -> None:
        for child in self._gateways:
            child.terminate()
        for child in self._gateways:
            child.wait(60)
        self.session.close()
        down(self.cluster, force=True)

    # --- processes -----------------------------------------------------------------------------

    def start_gateway(self) -> None:
        """Before there is another one, so that `holdfast serve` starts none."""
        words = ["--cluster", str(self.cluster.folder), "--name", "bench", "--no-access-log"]
        words += ["--listen", f"{self.gateway[0]}:{self.gateway[1]}"]
        with (self.folder / "gateway.log").open("ab") as log:
            child = subprocess.Popen(
                [sys.executable, "-m", "holdfast.serve.gateway", *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )
        self._gateways.append(child)
        await_("a gateway", lambda: bool(self.services.gateways()))

    def start_all(self) -> None:
        """Coordinator and agent, then a controller and the gateway."""
        up(self.cluster, size=AGENT_SIZE)
        self.start_gateway()
        serving.ensure(self.cluster, self.session)

    # --- ours: published, and served by the cluster ---------------------------------------------

    def publish(
        self,
        name: str,
        code: Path,
        entry: str,
        rows: work.Array,
        arguments: Mapping[str, Any],
        kind: ModelKind = ModelKind.PYTHON,
        files: Mapping[str, Content] | None = None,
    ) -> Version:
        """A version of the model, through a trial load, as `holdfast models publish` does."""
        held = dict(files or {})
        folder = self.folder / "trial"
        folder.mkdir(exist_ok=True)
        for file, content in held.items():
            assert isinstance(content, Path)
            (folder / file).unlink(missing_ok=True)
            os.link(content, folder / file)
        recipe = making.Recipe(name, kind, folder, code, entry, arguments)
        signature, known = making.described(recipe, [{work.INPUT: rows}])
        held |= making.example_files(known)
        bundle = bundles.push(self.cluster.blobs(), code).digest
        draft = VersionDraft(name, kind, signature, held, bundle, entry, arguments)
        return self.registry.publish(draft)

    def serve(self, service: ServiceSpec, replicas: int) -> None:
        """As `holdfast serve --replicas`; returns when so many hold the first version."""
        counts = {"replicas_min": replicas, "replicas_max": replicas, "replicas_wanted": replicas}
        self.services.create(replace(service, **counts))  # type: ignore[arg-type]
        self.await_stable(service.name, int(service.target), replicas)

    def serve_work(self, model: str, replicas: int) -> None:
        """One of the bench's models."""
        code = self.folder / "code"
        code.mkdir(exist_ok=True)
        shutil.copy(SCRIPTS.parent / "work.py", code)
        shutil.copy(SCRIPTS / "served.py", code)
        rows = np.concatenate([work.row(model)] * 2)
        version = self.publish(model, code, "served:Served", rows, {"name": model})
        service = ServiceSpec(
            model, model, str(version.number), resources=SMALL_SHARE, policy=QUICK
        )
        service = replace(service, limits=replace(service.limits, batch_max=BATCH))
        self.serve(service, replicas)

    def replicas(self, service: str) -> list[Address]:
        found = self.services.replicas(service)
        return [(one.host, one.http_port) for _, one in sorted(found.items())]

    def as_gateway(self, service: str) -> dict[str, str]:
        """What a gateway shows to a replica: headers."""
        return {SECRET: self.services.service(service).secret}

    def ready(self, service: str, version: int) -> int:
        """How many replicas hold the version."""
        return sum(
            version in one.versions and one.versions[version].state is Load.READY
            for one in self.services.replicas(service).values()
        )

    def await_stable(self, service: str, version: int, replicas: int) -> RolloutPlan:
        """Until the service has settled on the version and every gateway knows."""

        def settled() -> RolloutPlan | None:
            plan = self.services.plan(service)
            if plan is None or plan.stage is not RolloutStage.STEADY or plan.stable != version:
                return None
            applied = [one.applied.get(service, 0) for one in self.services.gateways().values()]
            if self.ready(service, version) < replicas or min(applied, default=0) < plan.number:
                return None
            return plan

        return await_(f"{service} serves version {version}", settled)

    # --- servers of the bench, behind the same gateway ------------------------------------------

    def stand_in(self, service: str, addresses: list[Address]) -> None:
        """Let the gateway take these servers for replicas that hold version 1."""
        self._write(service_path(service), ServiceSpec(service, service, "1"))
        variants = (Variant("stable", 1, WEIGHT_TOTAL),)
        plan = RolloutPlan(1, RolloutStage.STEADY, hold=(1,), variants=variants, stable=1)
        self._write(plan_path(service), plan)
        place = Membership(self.session, replicas_path(service))
        for number, (host, port) in enumerate(addresses):
            held = {1: Loaded(Load.READY)}
            replica = Replica(service, number, host, port, 0, versions=held, plan=1)
            self._members.append(place.join(str(number), documents.document(replica)))

    def _write(self, path: str, value: Any) -> None:
        transaction = self.facts.transaction(lambda: False)
        transaction.create(path, documents.to_bytes(value))
        transaction.commit()


def await_(what: str, ready: Callable[[], T | None], patience_s: float = START_S) -> T:
    """What `ready` gives as soon as it is something."""
    deadline_s = time.monotonic() + patience_s
    while time.monotonic() < deadline_s:
        found = ready()
        if found:
            return found
        time.sleep(LOOK_S)
    raise Broken(f"{what}: not within {patience_s:g} s")
