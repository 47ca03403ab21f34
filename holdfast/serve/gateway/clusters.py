"""The upstream side of Envoy: one cluster for each version of a service and each protocol. Pure.

Endpoints stand in the cluster itself. In files of their own each would cost one inotify instance;
a user has 128 of them in all, and Envoy aborts when there is none left. Envoy swaps a changed
cluster when the new one is checked and warm; requests in flight end in the old one.

A cluster's endpoints are the replicas that say READY for the version. They stand in levels: our own
region first, then the other regions in their order. A version that is not the stable one has one
level more: replicas that have the stable version only. They are asked when nobody else can be, and
answer with the version that the request names as the second choice.
"""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, lru_cache
from typing import Any, Final

from holdfast.serve.gateway.state import Front, KnownReplica, KnownService
from holdfast.serve.records import BreakerPolicy, ServiceSpec
from holdfast.wire.handshake import MEMBER_HOST
from holdfast.wire.limits import HEALTH_CHECK_FAILURES, HEALTH_CHECK_S, HEALTH_CHECK_TIMEOUT_S

# A replica that breaks so many requests one after the other gets none for a while, at least the
# second; the third is how often that is looked at. Answers of the model do not count.
EJECT_LOOK_S: Final = 0.5
# Only when fewer of a version's replicas than this are healthy (so: none) all of them are tried.
# Any higher, and requests would go to the dead while somebody could answer.
PANIC_PERCENT: Final = 1.0
# With others to go to, a region keeps its requests until less than 1/1.4 = 71 % of it is healthy.
SPILL_PERCENT: Final = 140
# A canary's users stay with it while one of its replicas is healthy. (Envoy has no "always".)
STAY_PERCENT: Final = 1_000_000
# A part of the requests in flight that may be retries. When a region is lost, all of them are. What
# a full queue has refused is none of them but for a few (`ELSEWHERE_SHARE`).
RETRIES_AT_ONCE_MIN: Final = 128
# What Envoy keeps open to, and has waiting for, the replicas of one version. Replicas refuse far
# earlier; this is for Envoy's own memory.
UPSTREAM_CONNECTIONS_MAX: Final = 8_192
# Below what replicas close by themselves: a request never meets a connection that just ends.
UPSTREAM_IDLE_S: Final = 30.0
# Places of Maglev's table for the replicas of a version, a prime: a hundred for each of 160, so
# that at most 1 % of the keys move needlessly. Envoy's ring has one size for all: each replica gets
# fewer points when one comes, and half as many keys again move as must.
TABLE_PLACES: Final = 16_381
# A replica in the table has at most so many times its even share of what is in flight: what is
# above, of a key that many ask for, goes elsewhere. But without any one replica the others must be
# able to take all, with some to spare: one that just died has nothing to do, so what is too much
# for the others would be sent to it again and again. Of two that leaves no bound.
KEYED_LOAD_MAX: Final = 1.5
KEYED_SPARE: Final = 1.25
BOUNDED_REPLICAS_MIN: Final = 3

Json = dict[str, Any]

TYPE: Final = "type.googleapis.com/"
HTTP: Final = "http"
GRPC: Final = "grpc"
PROTOCOLS: Final = (HTTP, GRPC)
READY_PATH: Final = "/v2/health/ready"
METADATA: Final = "holdfast"
_MATCHED: Final = "envoy.transport_socket_match"
_SPEAKS_TLS: Final[Json] = {"tls": "1"}


def cluster_name(service: str, version: int, protocol: str = HTTP) -> str:
    return f"{service}@{version}" + ("+grpc" if protocol == GRPC else "")


def sibling(name: str, version: int) -> str:
    """The name of the cluster of another version of that service, by the same protocol."""
    service, _, rest = name.rpartition("@")
    return cluster_name(service, version, GRPC if "+" in rest else HTTP)


@lru_cache(maxsize=1_024)
def seconds(value_s: float) -> str:
    """A duration as protobuf's JSON has it."""
    return f"{value_s:.9f}".rstrip("0").rstrip(".") + "s"


# --- clusters ------------------------------------------------------------------------------------


def cluster(
    known: KnownService, version: int, protocol: str, front: Front, instead: int | None = None
) -> Json:
    """The cluster of one version by one protocol; `instead` as for `endpoints`."""
    assignment = endpoints(known, version, protocol, front, instead)
    made: Json = {
        "@type": TYPE + "envoy.config.cluster.v3.Cluster",
        "name": cluster_name(known.name, version, protocol),
        "type": "STATIC",
        "load_assignment": assignment,
        "connect_timeout": seconds(known.service.breaker.connect_s),
        "per_connection_buffer_limit_bytes": max(known.service.limits.body_bytes_max, 1024 * 1024),
        **_balance(known.service, assignment["endpoints"]),
        "common_lb_config": {
            "healthy_panic_threshold": {"value": PANIC_PERCENT},
            # Else what health checks find may wait a second before a request profits from it.
            "update_merge_window": "0s",
        },
        "health_checks": [_health_check()],
        "outlier_detection": _ejection(known.service.breaker),
        "circuit_breakers": {"thresholds": [_breaker(known.service.breaker)]},
        "typed_extension_protocol_options": _protocol(protocol),
    }
    # All workers of a job have certificates by the same key, so one that names it is enough.
    trust = min((one.replica.trust for one in known.replicas if one.replica.trust), default="")
    if trust:
        made["transport_socket_matches"] = _sockets(trust, protocol)
    return made


def _sockets(trust: str, protocol: str) -> list[Json]:
    """TLS to replicas that speak it, those of other machines; plain text to the others."""
    sockets = "envoy.extensions.transport_sockets."
    name = {"san_type": "DNS", "matcher": {"exact": MEMBER_HOST}}
    context: Json = {
        "tls_params": {
            "tls_minimum_protocol_version": "TLSv1_3",
            "tls_maximum_protocol_version": "TLSv1_3",  # of clients Envoy's own is an older one
        },
        "validation_context": {
            "trusted_ca": {"inline_string": trust},
            "match_typed_subject_alt_names": [name],
        },
    }
    if protocol == GRPC:
        context["alpn_protocols"] = ["h2"]
    tls = {
        "@type": TYPE + sockets + "tls.v3.UpstreamTlsContext",
        "common_tls_context": context,
        "sni": MEMBER_HOST,
    }
    plain = {"@type": TYPE + sockets + "raw_buffer.v3.RawBuffer"}
    return [
        {
            "name": "tls",
            "match": _SPEAKS_TLS,
            "transport_socket": {"name": "tls", "typed_config": tls},
        },
        {"name": "plain", "match": {}, "transport_socket": {"name": "raw", "typed_config": plain}},
    ]


def key_header(service: ServiceSpec) -> str:
    """The header whose value chooses the replica; "": none does. Replicas that remember answers are
    asked by the same users again."""
    return service.route_by or (service.sticky_header if service.cache_entries else "")


def _balance(service: ServiceSpec, levels: Sequence[Json]) -> Json:
    """By the value of a header: Maglev's table. Else whoever has the least to do."""
    header = key_header(service)
    if not header:
        return {"lb_policy": "LEAST_REQUEST", "least_request_lb_config": {"choice_count": 2}}
    config: Json = {"hash_policy": [{"header": {"header_name": header}}]}
    fewest = min((sum(map(_takes, level["lb_endpoints"])) for level in levels), default=0)
    if fewest >= BOUNDED_REPLICAS_MIN:
        share = KEYED_SPARE * fewest / (fewest - 1)
        config["hash_balance_factor"] = math.ceil(100 * max(KEYED_LOAD_MAX, share))
    table = {
        "@type": TYPE + "envoy.extensions.load_balancing_policies.maglev.v3.Maglev",
        "table_size": TABLE_PLACES,
        "consistent_hashing_lb_config": config,
    }
    policy = {"name": "envoy.load_balancing_policies.maglev", "typed_config": table}
    return {"load_balancing_policy": {"policies": [{"typed_extension_config": policy}]}}


def _takes(host: Json) -> bool:
    """Whether it gets new requests."""
    return "health_status" not in host


def file_source(path: str) -> Json:
    return {"path_config_source": {"path": path}, "resource_api_version": "V3"}


@cache  # the same for all: with many clusters, making it anew is most of the work
def _health_check() -> Json:
    """The gRPC port has the same process behind it: its health is asked for by HTTP as well."""
    every = seconds(HEALTH_CHECK_S)
    return {
        "timeout": seconds(HEALTH_CHECK_TIMEOUT_S),
        "interval": every,
        "no_traffic_interval": every,
        "no_traffic_healthy_interval": every,
        "unhealthy_interval": every,
        "unhealthy_edge_interval": every,
        "healthy_edge_interval": every,
        "interval_jitter": seconds(HEALTH_CHECK_S / 5),
        "unhealthy_threshold": HEALTH_CHECK_FAILURES,
        "healthy_threshold": 1,
        "http_health_check": {"path": READY_PATH, "codec_client_type": "HTTP1"},
    }


@lru_cache(maxsize=256)
def _ejection(breaker: BreakerPolicy) -> Json:
    """Only broken connections and time-outs eject a replica. A 5xx is an answer: of a bad version,
    which is as bad everywhere, or of a full queue, which others would have to take."""
    return {
        "split_external_local_origin_errors": True,
        "consecutive_local_origin_failure": breaker.failures,
        "enforcing_consecutive_local_origin_failure": 100,
        "enforcing_local_origin_success_rate": 0,
        "enforcing_consecutive_5xx": 0,
        "enforcing_consecutive_gateway_failure": 0,
        "enforcing_success_rate": 0,
        "enforcing_failure_percentage": 0,
        "enforcing_failure_percentage_local_origin": 0,
        "interval": seconds(EJECT_LOOK_S),
        "base_ejection_time": seconds(breaker.open_s),
        "max_ejection_time": seconds(breaker.open_s_max),
        "max_ejection_percent": 100,
        # It stays open for as long as was said, also if its health looks well.
        "successful_active_health_check_uneject_host": False,
    }


@lru_cache(maxsize=256)
def _breaker(breaker: BreakerPolicy) -> Json:
    return {
        "max_connections": UPSTREAM_CONNECTIONS_MAX,
        "max_pending_requests": breaker.requests_max,
        "max_requests": breaker.requests_max,
        "retry_budget": {
            "budget_percent": {"value": breaker.retry_percent},
            "min_retry_concurrency": RETRIES_AT_ONCE_MIN,
        },
    }


@cache
def _protocol(protocol: str) -> Json:
    explicit: Json = {"http2_protocol_options": {}}
    if protocol == HTTP:
        explicit = {"http_protocol_options": {}}
    options = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
    return {
        options: {
            "@type": TYPE + options,
            "common_http_protocol_options": {"idle_timeout": seconds(UPSTREAM_IDLE_S)},
            "explicit_http_config": explicit,
        }
    }


# --- endpoints -----------------------------------------------------------------------------------

# What the endpoints of a cluster are made of. The same source, service and front: the same cluster.
Source = tuple[tuple[object, ...], ...]


def source(known: KnownService, version: int, instead: int | None = None) -> Source:
    """Of each replica that stands in it, all that is told of it there."""
    found = []
    for one in known.replicas:
        ready = one.ready(version)
        if ready or (instead is not None and one.ready(instead)):
            who = one.replica
            where = (*one.address, who.grpc_port, who.region, who.trust)
            found.append((ready, who.worker, *where, one.draining))
    return tuple(found)


def endpoints(
    known: KnownService, version: int, protocol: str, front: Front, instead: int | None = None
) -> Json:
    """Where the replicas of a version are, in levels; the last one: those that have only the
    version `instead`."""
    there = [one for one in known.replicas if _reachable(one, protocol)]
    can = [one for one in there if one.ready(version)]
    ours = [one for one in can if at_home(one, front)]
    spare: list[KnownReplica] = []
    if instead is not None:
        spare = [one for one in there if one.ready(instead) and not one.ready(version)]
    afar = _by_region((one for one in can if not at_home(one, front)), front)
    levels = [level for level in (ours, *afar, spare) if level]
    keyed = bool(key_header(known.service))
    return {
        "cluster_name": cluster_name(known.name, version, protocol),
        "endpoints": [
            _level(number, [_endpoint(one, protocol, front, keyed=keyed) for one in level])
            for number, level in enumerate(levels)
        ],
        "policy": _policy(STAY_PERCENT if spare else SPILL_PERCENT),
    }


def hosts(one: Json) -> Iterator[Json]:
    """All that stand in a cluster, in the order of its levels."""
    for level in one["load_assignment"]["endpoints"]:
        yield from level["lb_endpoints"]


def with_spares(one: Json, spares: Sequence[Json]) -> Json:
    """The cluster, and on its last level those of `spares` that it does not have. They are asked
    when nobody else can be."""
    there = [each["endpoint"]["address"] for each in hosts(one)]
    more = [each for each in spares if each["endpoint"]["address"] not in there]
    if not more:
        return one
    assigned = one["load_assignment"]
    levels = list(assigned["endpoints"])
    if levels and assigned["policy"] == _policy(STAY_PERCENT):
        last = levels.pop()
        more = [*last["lb_endpoints"], *more]
    levels.append(_level(len(levels), more))
    held = {**assigned, "endpoints": levels, "policy": _policy(STAY_PERCENT)}
    return {**one, "load_assignment": held}


def _policy(percent: int) -> Json:
    """How much of a level must be ill before requests go to the next one."""
    return {"overprovisioning_factor": percent}


def _reachable(one: KnownReplica, protocol: str) -> bool:
    """Envoy refuses a whole file for one address that is none."""
    return _is_address(one.replica.host) and (protocol == HTTP or bool(one.replica.grpc_port))


@lru_cache(maxsize=4_096)  # more than there are replicas
def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def at_home(one: KnownReplica, front: Front) -> bool:
    """A replica that names no region is wherever it is asked from."""
    return not one.replica.region or one.replica.region == front.region


def _by_region(replicas: Iterable[KnownReplica], front: Front) -> list[list[KnownReplica]]:
    grouped: dict[str, list[KnownReplica]] = {}
    for one in replicas:
        grouped.setdefault(one.replica.region, []).append(one)

    def place(region: str) -> tuple[int, str]:
        known = front.regions.index(region) if region in front.regions else len(front.regions)
        return known, region

    return [grouped[region] for region in sorted(grouped, key=place)]


def _level(number: int, level: Sequence[Json]) -> Json:
    """The same hosts make the same level, in whatever order they come."""
    there = _sorted(level)
    return {
        "priority": number,
        "locality": {"region": _facts(there[0])["region"]},
        "lb_endpoints": there,
    }


def _sorted(level: Sequence[Json]) -> list[Json]:
    def place(one: Json) -> tuple[int, str, int]:
        where = one["endpoint"]["address"]["socket_address"]
        return int(_facts(one)["replica"]), where["address"], where["port_value"]

    return sorted(level, key=place)


def _facts(one: Json) -> Json:
    """What an endpoint says of its replica."""
    found: Json = one["metadata"]["filter_metadata"][METADATA]
    return found


def _endpoint(one: KnownReplica, protocol: str, front: Front, *, keyed: bool) -> Json:
    replica = one.replica
    port = replica.grpc_port if protocol == GRPC else replica.http_port
    endpoint: Json = {"address": _socket(replica.host, port)}
    if protocol == GRPC:
        endpoint["health_check_config"] = {"port_value": replica.http_port}
    facts = {"replica": str(replica.worker), "region": replica.region or front.region}
    if not at_home(one, front):
        facts["spill"] = "1"
    made: Json = {"endpoint": endpoint, "metadata": {"filter_metadata": {METADATA: facts}}}
    if keyed:
        # By its number, not its port: over HTTP and gRPC the same replica has a key.
        made["metadata"]["filter_metadata"]["envoy.lb"] = {"hash_key": str(replica.worker)}
    if replica.trust:
        made["metadata"]["filter_metadata"][_MATCHED] = _SPEAKS_TLS
    if one.draining:
        made["health_status"] = "DRAINING"
    return made


def _socket(host: str, port: int) -> Json:
    return {"socket_address": {"address": host, "port_value": port}}
