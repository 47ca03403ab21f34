"""What a gateway knows, as values. `resources` makes Envoy's configuration of them."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final

from holdfast.serve.checked import HEADER
from holdfast.serve.records import (
    WEIGHT_TOTAL,
    BreakerPolicy,
    Limits,
    Load,
    Loaded,
    Replica,
    RolloutPlan,
    ServiceSpec,
    Variant,
)
from holdfast.wire.limits import LOST_REPLICA_S


@dataclass(frozen=True, slots=True)
class GatewayTls:
    """Files of a certificate chain and its key; Envoy reads them again when they are replaced."""

    certificate: str
    key: str


@dataclass(frozen=True, slots=True)
class Front:
    """Where and how a gateway listens. It does not change while its Envoy runs.

    `regions`: the other regions, the nearest first; one that is not named comes after them.
    """

    host: str
    port: int
    region: str = ""
    regions: tuple[str, ...] = ()
    tls: GatewayTls | None = None
    access_log: bool = True
    release: str = ""  # of Holdfast

    @property
    def address(self) -> str:
        """Where clients connect, as a URL."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'http' if self.tls is None else 'https'}://{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class KnownReplica:
    """A replica. `lost_s`: since when its registration is gone (None: it is there); its process
    may be well, and its own health says whether it is."""

    replica: Replica
    lost_s: float | None = None

    @property
    def address(self) -> tuple[str, int]:
        return self.replica.host, self.replica.http_port

    def ready(self, version: int) -> bool:
        loaded = self.replica.versions.get(version)
        return loaded is not None and loaded.state is Load.READY

    @property
    def draining(self) -> bool:
        return self.replica.draining


@dataclass(frozen=True, slots=True)
class KnownService:
    """A service with its plan and its replicas. `lost_s`: since when its node is gone."""

    service: ServiceSpec
    plan: RolloutPlan | None = None
    replicas: tuple[KnownReplica, ...] = ()
    lost_s: float | None = None

    @property
    def name(self) -> str:
        return self.service.name

    def capacity(self, version: int) -> int:
        """How many replicas can take requests for that version."""
        return sum(one.ready(version) and not one.draining for one in self.replicas)

    def versions(self) -> tuple[int, ...]:
        """Every version that somebody may be asked for: routed to, or loaded somewhere. One that
        nobody has yet comes when somebody has it: an empty cluster would be warm too soon."""
        found: set[int] = set()
        if self.plan is not None:
            found.update(variant.version for variant in self.plan.variants)
        for one in self.replicas:
            found.update(version for version in one.replica.versions if one.ready(version))
        return tuple(sorted(found))


@dataclass(frozen=True, slots=True)
class GatewayState:
    """All that a gateway knows. `stale_s`: so many seconds old; None: it is the present."""

    front: Front
    services: tuple[KnownService, ...] = ()
    stale_s: int | None = None


def pressing(state: GatewayState) -> GatewayState:
    """The state without what no request waits for: which replicas have versions that no variant
    names, and what they are loading. In a rollout each replica says such things several times."""
    return replace(state, services=tuple(_pressing(known) for known in state.services))


def _pressing(known: KnownService) -> KnownService:
    variants = known.plan.variants if known.plan is not None else ()

    def reduced(one: KnownReplica) -> KnownReplica:
        ready = {
            variant.version: Loaded(Load.READY)
            for variant in variants
            if one.ready(variant.version)
        }
        return replace(one, replica=replace(one.replica, versions=ready, plan=0))

    return replace(known, replicas=tuple(reduced(one) for one in known.replicas))


def by_name(services: Iterable[KnownService]) -> dict[str, KnownService]:
    return {one.name: one for one in services}


# --- variants -------------------------------------------------------------------------------------
# Which share of a service's requests goes to which version. Pure.
#
# The plan says what is wanted. A share is never larger than the capacity behind it: what a variant
# cannot take, the stable variant takes. The shares always sum up to `WEIGHT_TOTAL`, and the stable
# one is the first: a user's place in `0 ... WEIGHT_TOTAL` is fixed, the last variant has the places
# at the end, so a canary that grows keeps everybody it had.


@dataclass(frozen=True, slots=True)
class VariantShare:
    """`weight` of `WEIGHT_TOTAL` requests are for `version`. `instead`: the version that may answer
    when no replica of `version` can; None: no other one may."""

    variant: str
    version: int
    weight: int
    instead: int | None = None


def shares(known: KnownService) -> tuple[VariantShare, ...]:
    """The shares of a service, the stable one first; none: it has no plan to follow yet."""
    variants = known.plan.variants if known.plan is not None else ()
    if not variants:
        return ()
    capacity = {variant.version: known.capacity(variant.version) for variant in variants}
    able = sum(
        any(one.ready(version) for version in capacity) and not one.draining
        for one in known.replicas
    )
    weights: list[int] = [
        _bounded(variant, capacity[variant.version], able) for variant in variants[1:]
    ]
    stable = WEIGHT_TOTAL - sum(weights)
    if stable < 0:  # a plan that gives away more than there is
        weights = _scaled(weights)
        stable = WEIGHT_TOTAL - sum(weights)
    if not capacity[variants[0].version] and any(weights):
        weights, stable = _without_stable(weights), 0
    first = variants[0]
    others = [
        VariantShare(
            variant.name,
            variant.version,
            weight,
            first.version if variant.version != first.version else None,
        )
        for variant, weight in zip(variants[1:], weights, strict=True)
        if weight
    ]
    if not stable:
        return tuple(others)
    return (VariantShare(first.name, first.version, stable), *others)


def _bounded(variant: Variant, capacity: int, able: int) -> int:
    """The variant's weight, or what its replicas can take of all that can take anything."""
    return min(variant.weight, WEIGHT_TOTAL * capacity // able) if able else 0


def _scaled(weights: list[int]) -> list[int]:
    total = sum(weights)
    return [weight * WEIGHT_TOTAL // total for weight in weights]


def _without_stable(weights: list[int]) -> list[int]:
    """Nobody has the stable version: those who can answer take its share too."""
    scaled = _scaled(weights)
    last = max(index for index, weight in enumerate(weights) if weight)
    scaled[last] += WEIGHT_TOTAL - sum(scaled)
    return scaled


# --- sane -----------------------------------------------------------------------------------------
# Values that Envoy understands, whatever somebody wrote down. Pure.
#
# Envoy refuses a file as a whole: one service with a header's name that is none would keep all the
# others from changing. So what cannot be is left out or bounded here, service by service.


_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,198}[A-Za-z0-9_-])?")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_UINT32_MAX: Final = 2**32 - 1
_DAY_S: Final = 86_400.0


def sane(service: ServiceSpec) -> ServiceSpec | None:
    """The service as Envoy can have it; None: under such a name it can have none."""
    if not _NAME.fullmatch(service.name):
        return None
    limits = service.limits
    return replace(
        service,
        model=service.model if _NAME.fullmatch(service.model) else service.name,
        sticky_header=service.sticky_header if HEADER.fullmatch(service.sticky_header) else "",
        route_by=service.route_by if HEADER.fullmatch(service.route_by) else "",
        # A key that no digest can be stays a lock that nothing opens.
        keys=tuple(one for one in service.keys if _DIGEST.fullmatch(one)) or service.keys[:1],
        operator_keys=tuple(one for one in service.operator_keys if _DIGEST.fullmatch(one)),
        limits=replace(
            limits,
            timeout_s=_within(limits.timeout_s, 0.001, _DAY_S, Limits().timeout_s),
            body_bytes_max=int(_within(limits.body_bytes_max, 1, _UINT32_MAX, _UINT32_MAX)),
            rate_per_s=_within(limits.rate_per_s, 0.0, _UINT32_MAX, 0.0),
        ),
        breaker=_sane_breaker(service.breaker),
    )


def _sane_breaker(breaker: BreakerPolicy) -> BreakerPolicy:
    usual = BreakerPolicy()
    open_s = _within(breaker.open_s, 0.001, _DAY_S, usual.open_s)
    return BreakerPolicy(
        int(_within(breaker.failures, 1, _UINT32_MAX, usual.failures)),
        open_s,
        max(open_s, _within(breaker.open_s_max, 0.001, _DAY_S, usual.open_s_max)),
        _within(breaker.connect_s, 0.001, _DAY_S, usual.connect_s),
        int(_within(breaker.requests_max, 1, _UINT32_MAX, usual.requests_max)),
        _within(breaker.retry_percent, 0.0, 100.0, usual.retry_percent),
    )


@lru_cache(maxsize=1_024)
def literal(text: str) -> str:
    """A text as the value of a header: Envoy takes `%` for a command, and no line may end in it."""
    plain = "".join(one if " " <= one <= "~" else "?" for one in text)
    return plain.replace("%", "%%")


def _within(value: float, least: float, most: float, otherwise: float) -> float:
    return min(max(value, least), most) if math.isfinite(value) else otherwise


# --- keeping --------------------------------------------------------------------------------------
# What stays known when facts vanish. Pure.
#
# A registration vanishes when its process ends, and also when a session is lost, or the plane comes
# back empty. A gateway that believed it at once would turn healthy replicas away. So what vanished
# stays while it is healthy, for a bounded time; and the last replicas of a service stay much
# longer.


# A replica whose registration is gone, and that is healthy, stays this long: time enough for its
# session to come back. The last ones of a service stay for the second.
LOST_LAST_S: Final = 3_600.0

Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class PlaneService:
    """What the plane holds of a service."""

    service: ServiceSpec
    plan: RolloutPlan | None = None
    replicas: Mapping[str, Replica] = field(default_factory=dict)


def kept(
    before: Sequence[KnownService],
    found: Mapping[str, PlaneService],
    now_s: float,
    healthy: Collection[Address] | None,
) -> tuple[KnownService, ...]:
    """What is known now. `healthy`: the addresses whose checks pass; None: nobody could say."""
    known = by_name(before)
    services = []
    for name in sorted({*known, *found}):
        one = _service(known.get(name), found.get(name), now_s, healthy)
        if one is not None:
            services.append(one)
    return tuple(services)


def anything_lost(services: Sequence[KnownService]) -> bool:
    """Whether somebody's health must be asked for."""
    return any(
        known.lost_s is not None or any(one.lost_s is not None for one in known.replicas)
        for known in services
    )


def _service(
    before: KnownService | None,
    found: PlaneService | None,
    now_s: float,
    healthy: Collection[Address] | None,
) -> KnownService | None:
    if found is None:
        assert before is not None
        replicas = _replicas(before, {}, now_s, healthy)
        if not replicas:
            return None
        return replace(before, replicas=replicas, lost_s=_since(before.lost_s, now_s))
    service: ServiceSpec | None = found.service
    if before is None or before.service != found.service:  # else it was looked at before
        service = sane(found.service)
    if service is None:
        return None
    plan = found.plan
    if plan is None and before is not None:
        plan = before.plan  # nobody takes a plan away; it is on its way back
    replicas = _replicas(before, found.replicas, now_s, healthy)
    return KnownService(service, plan, replicas)


def _replicas(
    before: KnownService | None,
    found: Mapping[str, Replica],
    now_s: float,
    healthy: Collection[Address] | None,
) -> tuple[KnownReplica, ...]:
    there = [KnownReplica(replica) for replica in found.values()]
    addresses = {one.address for one in there}
    workers = {one.replica.worker for one in there}
    lost = [
        replace(one, lost_s=_since(one.lost_s, now_s))
        for one in (before.replicas if before is not None else ())
        # Another process under the same number has taken its place; one that was draining is done.
        if one.address not in addresses and one.replica.worker not in workers and not one.draining
    ]
    able = any(not one.draining for one in there)
    well = [one for one in lost if healthy is None or one.address in healthy]
    stay = [one for one in lost if _stays(one, now_s, one in well, able or bool(well), able)]
    return tuple(sorted((*there, *stay), key=lambda one: (one.replica.worker, one.address)))


def _stays(
    one: KnownReplica, now_s: float, well: bool, others_well: bool, others_there: bool
) -> bool:
    assert one.lost_s is not None
    lost_for_s = now_s - one.lost_s
    if not well:
        return not others_well and lost_for_s < LOST_REPLICA_S
    return lost_for_s < (LOST_REPLICA_S if others_there else LOST_LAST_S)


def _since(lost_s: float | None, now_s: float) -> float:
    return now_s if lost_s is None else lost_s
