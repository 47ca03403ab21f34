"""The circuit breakers of a gateway: one for each replica, as Envoy's ejections tell. Pure.

    closed --(enough broken requests one after the other)--> open --(its time is over)--> half-open
       ^                                                       ^                              |
       |                                                       +-----(broken once more)-------+
       +------------------------------(a request was answered)--------------------------------+

Envoy says who is ejected now, and how many requests each has answered; when that began is what its
gateway has seen. A replica that was never open is not in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from holdfast.serve.gateway.state import Known
from holdfast.serve.records import Breaker, BreakerState

# How often a gateway asks its Envoy whom it has ejected, and of how many replicas of a service it
# tells that in the plane: a node has a megabyte.
BREAKERS_TOLD_MAX: Final = 64

Address = tuple[str, int]
# By service and replica.
States = Mapping[str, Mapping[int, BreakerState]]


@dataclass(frozen=True, slots=True)
class Host:
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

    def see(self, hosts: Iterable[Host], services: Iterable[Known], now_s: float) -> States:
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
        return self._told()

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

    def _told(self) -> States:
        """Of each service so many, those that changed last."""
        newest = sorted(self._states.items(), key=lambda each: -each[1].since_s)
        found: dict[str, dict[int, BreakerState]] = {}
        for (service, worker), state in newest:
            held = found.setdefault(service, {})
            if len(held) < BREAKERS_TOLD_MAX:
                held[worker] = state
        return found


def _by_replica(
    hosts: Iterable[Host], services: Iterable[Known]
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
