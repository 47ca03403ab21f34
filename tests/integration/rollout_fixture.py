"""Real controllers over a real plane, with replicas and gateways that follow a script.

The controller is a process, started as its users start it. A scripted replica is what a controller
sees of one: its member's node, which follows the plan, and its counts over HTTP.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

from holdfast.cluster import Cluster, create
from holdfast.coordination import Facts, Follow, Member, Membership
from holdfast.models.records import (
    Alias,
    Model,
    ModelKind,
    Signature,
    Version,
    alias_path,
    model_path,
    version_path,
)
from holdfast.serve.records import (
    GATEWAYS,
    LATENCY_BOUNDS_MS,
    Counts,
    Gateway,
    Load,
    Loaded,
    Replica,
    ReplicaStats,
    RolloutPlan,
    RolloutPolicy,
    RolloutStage,
    ServiceSpec,
    history_path,
    plan_path,
    replicas_path,
    service_path,
)
from holdfast.wire import documents
from holdfast.wire.history import entries_from
from tests.waiting import eventually

PLANE = "embedded:coordination?timeout_s=4&tick_ms=500"
NAME = "digits"
SLOT = 12  # the bucket of an ordinary answer
QUICK = RolloutPolicy(steps=(500, 5_000), hold_s=0.3, ready_s=60.0, requests_min=20)

Script = Callable[[int, int], Loaded | None]
"""What a replica makes of a version: its worker and the version; None: it stays as it is."""


def all_ready(_worker: int, _version: int) -> Loaded | None:
    return Loaded(Load.READY)


@dataclass
class Traffic:
    """What every replica counts of a version, for each question: so many requests, such errors."""

    requests: int = 50
    errors: int = 0
    bucket: int = SLOT


@dataclass
class Scripted:
    """One replica: its node and its counts."""

    worker: int
    server: ThreadingHTTPServer
    member: Member | None = None
    versions: dict[int, Loaded] = field(default_factory=dict)
    counts: dict[int, Counts] = field(default_factory=dict)
    waiting: int = 0
    plan: int = 0
    version_revision: int = 0
    silent: bool = False


class Scene:
    """A cluster with one service, for one test."""

    def __init__(self, folder: Path, service: ServiceSpec, versions: int = 3) -> None:
        self.cluster: Cluster = create(folder, coordination=PLANE)
        self.session = self.cluster.session()
        self.facts = Facts(self.session)
        self.script: Script = all_ready
        self.traffic: dict[int, Traffic] = {}
        self.replicas: dict[int, Scripted] = {}
        self.gateways: dict[str, Member] = {}
        self.lagging: set[str] = set()  # gateways that do not apply what they read
        self.plans: list[RolloutPlan] = []
        self.controllers: dict[str, subprocess.Popen[bytes]] = {}
        self._lock = threading.RLock()
        for number in range(1, versions + 1):
            self.publish(number)
        self.alias(1)
        self.put_service(service)
        self._follow = Follow(self.session, "plan", self._plan, self._followed)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._follow.close()
        for process in self.controllers.values():
            if process.poll() is None:
                process.terminate()
        for process in self.controllers.values():
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for replica in self.replicas.values():
            replica.server.shutdown()
            replica.server.server_close()
        self.session.close()

    # --- users and models -----------------------------------------------------------------------

    def publish(self, number: int, retired: str = "") -> None:
        version = Version(NAME, number, ModelKind.FUNCTION, Signature((), ()), {}, "", 0.0)
        self.put(version_path(NAME, number), replace(version, retired=retired))
        self._touch()

    def alias(self, number: int, alias: str = "prod") -> None:
        self.put(alias_path(NAME, alias), Alias(number))
        self._touch()

    def _touch(self) -> None:
        """Every change of a model is also one of its own node."""
        path = model_path(NAME)
        fact = self.facts.read(path, fresh=True)
        known = documents.from_bytes(path, Model, fact.data) if fact and fact.data else Model()
        self.put(path, replace(known, changes=known.changes + 1))

    def put_service(self, service: ServiceSpec) -> None:
        self.put(service_path(service.name), service)

    def service(self) -> ServiceSpec:
        path = service_path(NAME)
        fact = self.facts.read(path, fresh=True)
        assert fact is not None
        return documents.from_bytes(path, ServiceSpec, fact.data)

    def ask(self, **changes: Any) -> None:
        """A user changes what is wanted."""
        before = self.service()
        after = replace(
            before,
            revision=before.revision + 1,
            version_revision=before.version_revision + 1,
            **changes,
        )
        self.put_service(after)

    def put(self, path: str, value: Any) -> None:
        data = documents.to_bytes(value)
        transaction = self.facts.transaction(lambda: True)
        if self.facts.read(path, fresh=True) is None:
            transaction.create(path, data).commit()
        else:
            transaction.replace(path, data).commit()

    # --- controllers -----------------------------------------------------------------------------

    def conduct(self, name: str = "controller-1") -> subprocess.Popen[bytes]:
        """Start a controller."""
        self.cluster.logs_folder.mkdir(exist_ok=True)
        log = self.log(name).open("ab")
        command = [sys.executable, "-m", "holdfast.serve.controller"]
        options = ["--cluster", str(self.cluster.folder), "--name", name]
        process = subprocess.Popen([*command, *options], stdout=log, stderr=log)
        log.close()
        self.controllers[name] = process
        return process

    def log(self, name: str = "controller-1") -> Path:
        return self.cluster.logs_folder / f"{name}.log"

    def kill(self, name: str = "controller-1") -> None:
        process = self.controllers.pop(name)
        process.kill()
        process.wait(30)

    def server_pid(self) -> int:
        """Of the coordination server; 0: it writes its record just now."""
        try:
            return int(
                json.loads((self.cluster.folder / "coordination/server.json").read_text())["pid"]
            )
        except (FileNotFoundError, ValueError):
            return 0

    # --- replicas -------------------------------------------------------------------------------

    def add_replica(self, worker: int) -> Scripted:
        replica = Scripted(worker, _serve(self, worker))
        with self._lock:  # whoever follows would join for it, too, and one of the two be displaced
            self.replicas[worker] = replica
            self._show(replica)
        self._replica_follows(replica, self._plan(None))
        return replica

    def kill_replica(self, worker: int) -> None:
        """Its node goes without a word, and nobody answers."""
        with self._lock:
            replica = self.replicas.pop(worker)
        replica.server.shutdown()
        replica.server.server_close()
        assert replica.member is not None
        replica.member.leave()

    def say(self, worker: int, version: int, loaded: Loaded) -> None:
        with self._lock:
            replica = self.replicas[worker]
            replica.versions[version] = loaded
            self._show(replica)

    def stats(self, worker: int) -> ReplicaStats | None:
        """What a replica answers; it has counted some more requests since the last time."""
        with self._lock:
            replica = self.replicas.get(worker)
            if replica is None or replica.silent:
                return None
            for variant in self.plans[-1].variants if self.plans else ():
                traffic = self.traffic.get(variant.version, Traffic())
                before = replica.counts.get(variant.version, Counts(0, 0, (0,) * _BUCKETS))
                buckets = list(before.buckets)
                buckets[traffic.bucket] += traffic.requests
                replica.counts[variant.version] = Counts(
                    before.requests + traffic.requests,
                    before.errors + traffic.errors,
                    tuple(buckets),
                )
            return ReplicaStats(worker, replica.waiting, 0, 0, dict(replica.counts))

    def add_gateway(self, name: str) -> None:
        gateway = Gateway(name, "here", "127.0.0.1:1")
        member = Membership(self.session, GATEWAYS).join(name, documents.document(gateway))
        self.gateways[name] = member
        self._apply(name)

    def release(self, name: str) -> None:
        """A gateway that lagged applies what there is."""
        self.lagging.discard(name)
        self._apply(name)

    # --- what comes of it -----------------------------------------------------------------------

    def plan(self) -> RolloutPlan:
        found = self._plan(None)
        assert found is not None
        return found

    def until(self, condition: Callable[[RolloutPlan], bool], what: str) -> RolloutPlan:
        """Wait for a plan of which this is true."""

        def look() -> RolloutPlan | None:
            found = self._plan(None)
            return found if found is not None and condition(found) else None

        try:
            found = eventually(look, what)
        except AssertionError as error:
            logs = "\n".join(log.read_text() for log in self.cluster.logs_folder.glob("*.log"))
            raise AssertionError(f"{error}; the plan is {self._plan(None)}\n{logs}") from None
        assert found is not None
        return found

    def steady(self, version: int) -> RolloutPlan:
        return self.until(
            lambda plan: plan.stage is RolloutStage.STEADY and plan.stable == version,
            f"version {version} serves everything",
        )

    def reasons(self) -> list[str]:
        """The history, oldest first."""
        path = history_path(NAME)
        pages = [f"{path}/{name}" for name in self.facts.names(path, fresh=True)]
        found = self.facts.read_all(pages)
        entries = [e for page in pages for e in entries_from(page, found[page].data)]
        return [entry.reason for entry in entries]

    # --- private --------------------------------------------------------------------------------

    def _plan(self, wake: Callable[[], None] | None) -> RolloutPlan | None:
        path = plan_path(NAME)
        fact = self.facts.read(path, wake, fresh=True)
        return None if fact is None else documents.from_bytes(path, RolloutPlan, fact.data)

    def _followed(self, plan: RolloutPlan | None) -> None:
        if plan is None:
            return
        with self._lock:
            self.plans.append(plan)
            for replica in list(self.replicas.values()):
                self._replica_follows(replica, plan)
        for name in list(self.gateways):
            self._apply(name)

    def _replica_follows(self, replica: Scripted, plan: RolloutPlan | None) -> None:
        if plan is None:
            return
        with self._lock:
            if plan.version_revision != replica.version_revision:
                tried = [v for v, held in replica.versions.items() if held.state is Load.FAILED]
                for version in tried:
                    del replica.versions[version]
                replica.version_revision = plan.version_revision
            for version in plan.hold:
                if version not in replica.versions:
                    loaded = self.script(replica.worker, version)
                    replica.versions[version] = loaded or Loaded(Load.LOADING)
            for version in set(replica.versions) - set(plan.hold):
                del replica.versions[version]
                replica.counts.pop(version, None)
            replica.plan = plan.number
            self._show(replica)

    def _show(self, replica: Scripted) -> None:
        if replica.worker not in self.replicas:
            return
        port = replica.server.server_address[1]
        shown = Replica(
            NAME,
            replica.worker,
            "127.0.0.1",
            port,
            0,
            node=f"node-{replica.worker}",
            versions=dict(replica.versions),
            plan=replica.plan,
        )
        data = documents.document(shown)
        if replica.member is None:
            path = replicas_path(NAME)
            replica.member = Membership(self.session, path).join(str(replica.worker), data)
        else:
            replica.member.update(data)

    def _apply(self, name: str) -> None:
        plan = self._plan(None)
        if name in self.lagging or plan is None:
            return
        gateway = Gateway(name, "here", "127.0.0.1:1", {NAME: plan.number})
        self.gateways[name].update(documents.document(gateway))


_BUCKETS = len(LATENCY_BOUNDS_MS) + 1


def _serve(scene: Scene, worker: int) -> ThreadingHTTPServer:
    """A replica's HTTP side: its counts, and nothing else."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            stats = scene.stats(worker)
            if self.path != "/holdfast/stats" or stats is None:
                self.send_error(404 if stats else 503)
                return
            body = json.dumps(documents.document(stats)).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def a_service(policy: RolloutPolicy = QUICK, **more: Any) -> ServiceSpec:
    given: Mapping[str, Any] = {"replicas_min": 2, "replicas_max": 2, **more}
    return ServiceSpec(NAME, NAME, "prod", policy=policy, **given)
