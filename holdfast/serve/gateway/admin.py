"""Envoy's admin socket: a Unix socket in the gateway's folder, which only its owner may open."""

from __future__ import annotations

import http.client
import json
import os
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from holdfast.serve.gateway.resources import ADMIN_SOCKET
from holdfast.serve.gateway.state import KnownService
from holdfast.serve.records import Breaker, BreakerState
from holdfast.wire.errors import Unavailable

# One question to Envoy's admin socket.
ENVOY_ASK_S: Final = 5.0

# Suffixes of the statistics that name the version of a file, and what stands before the name.
_TAKEN = ".version_text"


class Admin:
    """Asks Envoy. For one thread at a time. `Unavailable`: it does not answer."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._link: _Link | None = None

    def ready(self) -> bool:
        """Whether it takes requests."""
        try:
            return self._ask("GET", "/ready").strip() == b"LIVE"
        except Unavailable:
            return False

    def taken(self) -> dict[str, str]:
        """The version that it has taken of each subscription, by the statistic's name."""
        text = self._ask("GET", r"/stats?type=TextReadouts&filter=version_text$").decode()
        pairs = (line.split(": ", 1) for line in text.splitlines() if ": " in line)
        return {name.removesuffix(_TAKEN): value.strip('"') for name, value in pairs}

    def warm_clusters(self) -> frozenset[str]:
        """Clusters whose replicas, those of the newest file, were checked: requests may be sent
        there. One that changes is active as it was until it is warm as it will be."""
        return self._clusters("active") - self.warming_clusters()

    def warming_clusters(self) -> frozenset[str]:
        """Clusters whose newest form is read, and not used yet: some replica is not checked."""
        return self._clusters("warming")

    def _clusters(self, state: str) -> frozenset[str]:
        asked = f"/config_dump?resource=dynamic_{state}_clusters&mask=cluster.name"
        found = json.loads(self._ask("GET", asked)).get("configs", [])
        return frozenset(str(one["cluster"]["name"]) for one in found)

    def healthy(self) -> frozenset[tuple[str, int]]:
        """Addresses that pass their health checks in some cluster."""
        found = set()
        answer = json.loads(self._ask("GET", "/clusters?format=json"))
        for cluster in answer.get("cluster_statuses", []):
            for host in cluster.get("host_statuses", []):
                health: Mapping[str, Any] = host.get("health_status", {})
                if health.get("failed_active_health_check"):
                    continue
                where = host["address"]["socket_address"]
                found.add((str(where["address"]), int(where["port_value"])))
        return frozenset(found)

    def hosts(self) -> list[EnvoyHost]:
        """Every replica in every cluster: whether it is ejected, and what it has answered."""
        found = []
        answer = json.loads(self._ask("GET", "/clusters?format=json"))
        for cluster in answer.get("cluster_statuses", []):
            for host in cluster.get("host_statuses", []):
                where = host["address"]["socket_address"]
                counts = {one["name"]: int(one.get("value", 0)) for one in host.get("stats", [])}
                found.append(
                    EnvoyHost(
                        str(cluster["name"]),
                        (str(where["address"]), int(where["port_value"])),
                        bool(host.get("health_status", {}).get("failed_outlier_check")),
                        counts.get("rq_success", 0) + counts.get("rq_error", 0),
                    )
                )
        return found

    def number(self, name: str) -> int:
        """One statistic; 0 if there is none of that name."""
        text = self._ask("GET", f"/stats?filter=^{name}$").decode()
        return sum(int(line.rpartition(": ")[2]) for line in text.splitlines() if ": " in line)

    def drain(self) -> None:
        """Take no new connections; answers tell clients to close theirs."""
        self._ask("POST", "/drain_listeners?graceful&skip_exit")

    def quit(self) -> None:
        self._ask("POST", "/quitquitquit")

    def reopen_logs(self) -> None:
        self._ask("POST", "/reopen_logs")

    def close(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None

    def _ask(self, method: str, path: str) -> bytes:
        try:
            if self._link is None:
                self._link = _Link(self._folder)
            self._link.request(method, path, headers={"Host": "envoy"})
            answer = self._link.getresponse()
            body = answer.read()
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise Unavailable(
                "Envoy does not answer at its admin socket", why=str(error)
            ) from error
        if answer.status >= 400 and path != "/ready":
            raise Unavailable(
                f"Envoy refused {path}", why=f"{answer.status}: {body[:200].decode()}"
            )
        return body


class _Link(http.client.HTTPConnection):
    """HTTP over the socket in a folder, however long its path is: a socket's name has 107 bytes."""

    def __init__(self, folder: Path) -> None:
        super().__init__("envoy", timeout=ENVOY_ASK_S)
        self._folder = folder

    def connect(self) -> None:
        handle = os.open(self._folder, os.O_PATH | os.O_DIRECTORY)
        try:
            self.sock = socket.socket(socket.AF_UNIX)
            self.sock.settimeout(ENVOY_ASK_S)
            self.sock.connect(f"/proc/self/fd/{handle}/{ADMIN_SOCKET}")
        finally:
            os.close(handle)


# --- breakers -------------------------------------------------------------------------------------
# The circuit breakers of a gateway: one for each replica, as Envoy's ejections tell. Pure.
#
#     closed --(enough broken requests one after the other)--> open --(its time is over)-->
# half-open        ^                                                       ^
# |        |                                                       +-----(broken once more)-------+
#        +------------------------------(a request was answered)--------------------------------+
#
# Envoy says who is ejected now, and how many requests each has answered; when that began is what
# its gateway has seen. A replica that was never open is not in it.


# How often a gateway asks its Envoy whom it has ejected, and of how many replicas of a service it
# tells that in the plane: a node has a megabyte.
BREAKERS_TOLD_MAX: Final = 64

Address = tuple[str, int]
# By service and replica.
States = Mapping[str, Mapping[int, BreakerState]]


@dataclass(frozen=True, slots=True)
class EnvoyHost:
    """A replica in one of Envoy's clusters: whether it is ejected, and what it has answered."""

    cluster: str
    address: Address
    ejected: bool
    answered: int


class Breakers:
    """What a gateway has seen of them. For one thread."""

    def __init__(self) -> None:
        self._states: dict[tuple[str, int], BreakerState] = {}
        self._answered: dict[tuple[str, int], int] = {}  # when it was half-open first

    def see(
        self, hosts: Iterable[EnvoyHost], services: Iterable[KnownService], now_s: float
    ) -> States:
        """What they are like now."""
        seen = _by_replica(hosts, services)
        for key in [*self._states]:
            if key not in seen:
                del self._states[key]
                self._answered.pop(key, None)
        for key, (ejected, answered) in seen.items():
            before = self._states.get(key)
            after = self._next(key, before, ejected, answered)
            if after is not None and (before is None or before.state is not after):
                self._states[key] = BreakerState(after, now_s)
        return self._latest_states()

    def _next(
        self, key: tuple[str, int], before: BreakerState | None, ejected: bool, answered: int
    ) -> Breaker | None:
        """None: closed, as it has always been."""
        if ejected:
            return Breaker.OPEN
        if before is None or before.state is Breaker.CLOSED:
            return None if before is None else Breaker.CLOSED
        if before.state is Breaker.OPEN:
            self._answered[key] = answered
            return Breaker.HALF_OPEN
        return Breaker.CLOSED if answered > self._answered.get(key, 0) else Breaker.HALF_OPEN

    def _latest_states(self) -> States:
        """Of each service so many, those that changed last."""
        newest = sorted(self._states.items(), key=lambda each: -each[1].since_s)
        found: dict[str, dict[int, BreakerState]] = {}
        for (service, worker), state in newest:
            held = found.setdefault(service, {})
            if len(held) < BREAKERS_TOLD_MAX:
                held[worker] = state
        return found


def _by_replica(
    hosts: Iterable[EnvoyHost], services: Iterable[KnownService]
) -> dict[tuple[str, int], tuple[bool, int]]:
    """Whether a replica is ejected in some cluster, and what it has answered in all of them."""
    workers: dict[tuple[str, Address], int] = {}
    for known in services:
        for one in known.replicas:
            for port in (one.replica.http_port, one.replica.grpc_port):
                workers[known.name, (one.replica.host, port)] = one.replica.worker
    found: dict[tuple[str, int], tuple[bool, int]] = {}
    for host in hosts:
        service = host.cluster.rpartition("@")[0]
        worker = workers.get((service, host.address))
        if worker is not None:
            ejected, answered = found.get((service, worker), (False, 0))
            found[service, worker] = (ejected or host.ejected, answered + host.answered)
    return found
