"""Envoy's files as Envoy understands them: as much of it as decides where a request goes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from holdfast.serve.gateway.clusters import Json
from holdfast.serve.gateway.routes import SERVICE_HEADER
from holdfast.serve.protocol import marks

_PREVIOUS_HOSTS: Final = "envoy.retry_host_predicates.previous_hosts"
# What a retry must be allowed on (one of them), for each way in which a try fails.
REFUSED: Final = frozenset({"connect-failure", "reset", "gateway-error", "5xx"})
BROKEN: Final = frozenset({"reset", "gateway-error", "5xx"})
NOT_HERE: Final = frozenset({"retriable-headers", "gateway-error", "5xx"})


@dataclass(frozen=True, slots=True)
class Host:
    address: str
    port: int
    draining: bool


@dataclass(frozen=True, slots=True)
class Cluster:
    """Hosts in levels; `stay`: what the share of healthy hosts of a level is multiplied with before
    requests go to the next one. `checked`: its hosts' health is asked for."""

    name: str
    levels: tuple[tuple[Host, ...], ...]
    stay: float
    checked: bool
    panic: float


@dataclass(frozen=True, slots=True)
class WeightedCluster:
    """A share of a route: the cluster, and what the request says to the replica."""

    cluster: str
    weight: int
    version: int
    instead: int | None


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How a request is tried again: how often, upon what, by another host, after how many tries at
    another level, and how much of its time a try has."""

    count: int
    upon: frozenset[str]
    other_hosts: bool
    same_level: int
    try_s: float


@dataclass(frozen=True, slots=True)
class Route:
    """Where a request goes: by variants; or the gateway answers itself, with `status`."""

    variants: tuple[WeightedCluster, ...]
    total: int
    retries: RetryPolicy
    timeout_s: float
    status: int


@dataclass(frozen=True, slots=True)
class Table:
    """All routes of a file, in the order in which they are tried."""

    host: Json
    _found: dict[tuple[str, str], Route | None] = field(default_factory=dict)

    def route(self, path: str, service: str = "") -> Route | None:
        """The first that fits; `service`: the header that names one."""
        key = (path, service)
        if key not in self._found:
            fits = (one for one in self.host["routes"] if _fits(one["match"], path, service))
            one = next(fits, None)
            self._found[key] = _route(one, self.host) if one is not None else None
        return self._found[key]


def table_of(content: Json) -> Table:
    return Table(content["resources"][0]["virtual_hosts"][0])


def cluster_of(one: Json) -> Cluster:
    assigned = one["load_assignment"]
    levels: dict[int, list[Host]] = {}
    for group in assigned["endpoints"]:
        hosts = levels.setdefault(group["priority"], [])
        for each in group["lb_endpoints"]:
            where = each["endpoint"]["address"]["socket_address"]
            draining = each.get("health_status") == "DRAINING"
            hosts.append(Host(where["address"], where["port_value"], draining))
    return Cluster(
        str(one["name"]),
        tuple(tuple(levels[number]) for number in sorted(levels)),
        assigned["policy"]["overprovisioning_factor"] / 100,
        bool(one.get("health_checks")),
        one["common_lb_config"]["healthy_panic_threshold"]["value"],
    )


# --- private --------------------------------------------------------------------------------------


def _route(one: Json, host: Json) -> Route:
    action = one.get("route")
    if action is None:
        nothing = RetryPolicy(0, frozenset(), False, 1, 0.0)
        return Route((), 0, nothing, 0.0, one["direct_response"]["status"])
    variants = tuple(_variant(each) for each in action["weighted_clusters"]["clusters"])
    retries = _retries(action.get("retry_policy") or host.get("retry_policy") or {})
    total = sum(variant.weight for variant in variants)
    return Route(variants, total, retries, _seconds(action["timeout"]), 0)


def _variant(one: Json) -> WeightedCluster:
    added = {
        each["header"]["key"]: each["header"]["value"] for each in one["request_headers_to_add"]
    }
    instead = added.get(marks.INSTEAD)
    return WeightedCluster(
        str(one["name"]),
        one["weight"],
        int(added[marks.VERSION]),
        None if instead is None else int(instead),
    )


def _retries(policy: Mapping[str, Any]) -> RetryPolicy:
    priority = policy.get("retry_priority", {}).get("typed_config", {})
    return RetryPolicy(
        policy.get("num_retries", 0),
        frozenset(policy.get("retry_on", "").split(",")),
        any(each["name"] == _PREVIOUS_HOSTS for each in policy.get("retry_host_predicate", ())),
        priority.get("update_frequency", 1_000),
        _seconds(policy.get("per_try_timeout", "1000s")),
    )


def _seconds(text: str) -> float:
    return float(text.removesuffix("s"))


def _fits(match: Json, path: str, service: str) -> bool:
    for header in match.get("headers", ()):
        if not _has(header, service):
            return False
    if "prefix" in match:
        return path.startswith(match["prefix"])
    if "path" in match:
        return path == str(match["path"])
    prefix = str(match["path_separated_prefix"])
    return path == prefix or path.startswith(f"{prefix}/")


def _has(header: Json, service: str) -> bool:
    """Whether a request of this world has the header: all are posted, and a service is named by the
    header that says so, never by a message's model alone."""
    wanted = header["string_match"]
    if header["name"] == ":method":
        named = wanted.get("exact") or wanted["safe_regex"]["regex"]
        return "POST" in str(named).split("|")
    return header["name"] == SERVICE_HEADER and bool(wanted.get("exact") == service)
