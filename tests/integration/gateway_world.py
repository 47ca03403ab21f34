"""A gateway as a process, with a plane and upstreams that are processes too; and clients."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from holdfast.cluster import Process, create
from holdfast.cluster.registry import recorded
from holdfast.coordination import Facts, Member, Membership, Session, connect
from holdfast.serve.gateway.main import folder_of
from holdfast.serve.records import (
    GATEWAYS,
    WEIGHT_TOTAL,
    Gateway,
    Load,
    Loaded,
    Replica,
    RolloutPlan,
    RolloutStage,
    ServiceSpec,
    Variant,
    plan_path,
    replicas_path,
    service_path,
)
from holdfast.wire import documents
from tests.servers import EmbeddedServer, free_port
from tests.servers.upstream import Upstream
from tests.waiting import eventually


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def version(self) -> str:
        return self.headers.get("x-holdfast-version", "")

    @property
    def replica(self) -> str:
        return self.headers.get("x-holdfast-replica", "")

    def json(self) -> Any:
        return json.loads(self.body)


class World:
    """One cluster folder over one plane; gateways, services and upstreams are added by tests."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.plane = EmbeddedServer(folder / "plane", options=("--tick-ms", "500")).start()
        where = f"zk://{self.plane.hosts}?timeout_s=6"
        self.cluster = create(folder / "cluster", coordination=where)
        self.session: Session = connect(where)
        self.plans: dict[str, RolloutPlan] = {}
        self.members: dict[tuple[str, int], Member] = {}
        self.upstreams: list[Upstream] = []
        self.gateways: list[GatewayProcess] = []

    # --- facts ----------------------------------------------------------------------------------

    def put(self, path: str, value: Any) -> None:
        facts = Facts(self.session)
        data = documents.to_bytes(value)
        there = facts.read(path) is not None
        writes = facts.transaction(lambda: True)
        (writes.replace if there else writes.create)(path, data)
        writes.commit()

    def service(self, name: str = "digits", **more: Any) -> ServiceSpec:
        made = ServiceSpec(name, more.pop("model", name), "prod", **more)
        self.put(service_path(name), made)
        return made

    def plan(
        self, service: str = "digits", *variants: tuple[int, int], hold: tuple[int, ...] = ()
    ) -> RolloutPlan:
        """Variants as (version, weight), the stable one first; its number grows."""
        variants = variants or ((1, WEIGHT_TOTAL),)
        names = ("stable", "canary", "third")
        number = self.plans[service].number + 1 if service in self.plans else 1
        made = RolloutPlan(
            number,
            RolloutStage.STEADY,
            hold or tuple(version for version, _ in variants),
            tuple(Variant(names[i], *variant) for i, variant in enumerate(variants)),
            stable=variants[0][0],
        )
        self.plans[service] = made
        self.put(plan_path(service), made)
        return made

    def replica(
        self,
        worker: int,
        versions: Sequence[int] = (1,),
        *,
        service: str = "digits",
        region: str = "",
        host: str = "127.0.0.1",
        start: bool = True,
    ) -> Upstream:
        """A living upstream, registered as a replica that is READY."""
        upstream = Upstream(self.folder, worker, versions, region, host)
        if start:
            upstream.start()
        self.upstreams.append(upstream)
        self.register(upstream, service)
        return upstream

    def facts_of(self, upstream: Upstream, service: str = "digits") -> Replica:
        return Replica(
            service,
            upstream.worker,
            upstream.host,
            upstream.port,
            0,
            region=upstream.region,
            versions={one: Loaded(Load.READY) for one in upstream.versions},
        )

    def register(self, upstream: Upstream, service: str = "digits", **more: Any) -> None:
        plain = documents.document(replace(self.facts_of(upstream, service), **more))
        key = (service, upstream.worker)
        if key in self.members:
            self.members[key].update(plain)
        else:
            members = Membership(self.session, replicas_path(service))
            self.members[key] = members.join(str(upstream.worker), plain)

    def deregister(self, upstream: Upstream, service: str = "digits") -> None:
        self.members.pop((service, upstream.worker)).leave()

    def shown(self, name: str = "front") -> Gateway | None:
        found = Membership(self.session, GATEWAYS).members().get(name)
        return documents.from_document(name, Gateway, found.data) if found else None

    def applied(self, plan: RolloutPlan, service: str = "digits", gateway: str = "front") -> None:
        """Wait until the gateway has said that it has taken the plan."""

        def taken() -> bool:
            shown = self.shown(gateway)
            return shown is not None and shown.applied.get(service, 0) >= plan.number

        eventually(taken, f"plan {plan.number} is applied")

    # --- gateways -------------------------------------------------------------------------------

    def gateway(self, name: str = "front", *words: str, **more: Any) -> GatewayProcess:
        made = GatewayProcess(self, name, words, **more)
        self.gateways.append(made)
        return made.start()

    def close(self) -> None:
        for gateway in self.gateways:
            gateway.end()
        self.session.close()
        for upstream in self.upstreams:
            if upstream.process is not None:
                upstream.resume()
                upstream.kill()
        self.plane.kill()


class GatewayProcess:
    """`python -m holdfast.serve.gateway`, and its Envoy."""

    def __init__(
        self,
        world: World,
        name: str,
        words: Sequence[str],
        host: str = "127.0.0.1",
        port: int | None = None,
    ) -> None:
        self.world = world
        self.name = name
        self.words = words
        self.host = host
        self.port = port or free_port()
        self.child: subprocess.Popen[bytes] | None = None

    @property
    def folder(self) -> Path:
        return folder_of(self.world.cluster, self.name)

    def start(self) -> GatewayProcess:
        self.launch()
        eventually(self._answers, "the gateway answers")
        return self

    def launch(self) -> None:
        where = ["--cluster", str(self.world.cluster.folder), "--name", self.name]
        front = ["--listen", f"{self.host}:{self.port}", "--concurrency", "1"]
        with (self.world.folder / f"{self.name}.log").open("ab") as output:
            self.child = subprocess.Popen(
                [sys.executable, "-m", "holdfast.serve.gateway", *where, *front, *self.words],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _answers(self) -> bool:
        assert self.child is not None
        assert self.child.poll() is None, self.log()
        try:
            return self.get("/v2/health/live").status == 200
        except OSError:
            return False

    def log(self) -> str:
        return (self.world.folder / f"{self.name}.log").read_text()[-4_000:]

    def envoy(self) -> Process:
        found = recorded(self.world.cluster, "envoy", f"{self.name}.envoy")
        assert found is not None
        return found

    def kill(self) -> None:
        """The gateway's process dies; its Envoy does not."""
        assert self.child is not None
        self.child.kill()
        self.child.wait(30)

    def terminate(self) -> int:
        assert self.child is not None
        self.child.terminate()
        return self.child.wait(60)

    def end(self) -> None:
        if self.child is not None and self.child.poll() is None:
            self.child.kill()
            self.child.wait(30)
        left = recorded(self.world.cluster, "envoy", f"{self.name}.envoy")
        if left is not None:
            left.send(signal.SIGKILL)
            left.wait(60)

    # --- a client -------------------------------------------------------------------------------

    def connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self.host, self.port, timeout=30)

    def ask(
        self,
        path: str = "/v2/models/digits/infer",
        method: str = "POST",
        body: bytes | None = b"{}",
        headers: Mapping[str, str] | None = None,
        link: http.client.HTTPConnection | None = None,
    ) -> Reply:
        own = link or self.connection()
        try:
            own.request(method, path, body, dict(headers or {}))
            answer = own.getresponse()
            found = {key.lower(): text for key, text in answer.getheaders()}
            return Reply(answer.status, found, answer.read())
        finally:
            if link is None:
                own.close()

    def get(self, path: str) -> Reply:
        return self.ask(path, "GET", None)

    def served(self, path: str = "/v2/models/digits/infer", **more: Any) -> Reply:
        """The first good answer."""
        found: list[Reply] = []

        def good() -> bool:
            try:
                found.append(self.ask(path, **more))
            except OSError:
                return False
            return found[-1].status == 200

        eventually(good, "a good answer")
        return found[-1]


@dataclass
class Traffic:
    """What clients have seen."""

    statuses: Counter[int] = field(default_factory=Counter)
    versions: Counter[str] = field(default_factory=Counter)
    replicas: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    @property
    def total(self) -> int:
        return sum(self.statuses.values()) + len(self.failures)

    def failed(self) -> list[str]:
        bad = [f"{count} x {status}" for status, count in self.statuses.items() if status != 200]
        return bad + self.failures[:3]


@contextmanager
def load(
    gateway: GatewayProcess,
    threads: int = 4,
    headers: Callable[[int], Mapping[str, str]] = lambda _: {},
    path: str = "/v2/models/digits/infer",
    body: bytes = b"{}",
) -> Iterator[Traffic]:
    """Clients that ask without a pause, each on a connection of its own, until the block ends."""
    seen, lock, stop = Traffic(), threading.Lock(), threading.Event()

    def client(number: int) -> None:
        link = gateway.connection()
        turn = number
        while not stop.is_set():
            turn += threads
            try:
                reply = gateway.ask(path, headers=headers(turn), link=link, body=body)
            except (OSError, http.client.HTTPException) as error:
                with lock:
                    seen.failures.append(repr(error))
                link.close()
                continue
            with lock:
                seen.statuses[reply.status] += 1
                seen.versions[reply.version] += 1
                seen.replicas[reply.replica] += 1
        link.close()

    clients = [threading.Thread(target=client, args=(number,)) for number in range(threads)]
    for one in clients:
        one.start()
    try:
        yield seen
    finally:
        stop.set()
        for one in clients:
            one.join(60)


def ask_many(
    gateway: GatewayProcess,
    path: str,
    headers: Sequence[Mapping[str, str]],
    told: str = "x-holdfast-version",
) -> list[str]:
    """The versions (or what the header `told` says) that answered one request for each of
    `headers`, all good, in their order.

    On eight connections, and all sent before an answer is read: for tests that need thousands.
    """

    def some(start: int) -> list[str]:
        with socket.create_connection((gateway.host, gateway.port), timeout=60) as link:
            asked = headers[start : start + 125]
            link.sendall(b"".join(_spelled(path, one) for one in asked))
            answers = link.makefile("rb")
            return [_header_of(answers, told) for _ in asked]

    with ThreadPoolExecutor(8) as clients:
        return [one for found in clients.map(some, range(0, len(headers), 125)) for one in found]


def _spelled(path: str, headers: Mapping[str, str]) -> bytes:
    lines = [f"{key}: {text}" for key, text in headers.items()]
    head = [f"POST {path} HTTP/1.1", "host: test", "content-length: 2", *lines]
    return "\r\n".join([*head, "", "{}"]).encode()


def _header_of(answers: IO[bytes], told: str) -> str:
    status = answers.readline()
    assert b" 200 " in status, status
    said = {}
    while (line := answers.readline().strip()) != b"":
        key, _, text = line.decode().partition(":")
        said[key.lower()] = text.strip()
    answers.read(int(said["content-length"]))
    return said[told]


def pass_requests(seen: Traffic, count: int) -> None:
    """Wait until so many more were answered."""
    until = seen.total + count
    eventually(lambda: seen.total >= until, f"{count} more requests are answered")
