"""The routes: which request is for which service, and which version of it. Pure.

A service is found by the header `x-holdfast-service`, by its own name in the path, or by its
model's name if no other service has either. gRPC has that name inside the message: where there are
several services, a filter reads it (`model_names`) and says it as a header.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from holdfast.serve.gateway import keys, large_messages, local_replies, model_names
from holdfast.serve.gateway.clusters import (
    GRPC,
    HTTP,
    METADATA,
    TYPE,
    Json,
    at_home,
    cluster_name,
    seconds,
)
from holdfast.serve.gateway.local_replies import (
    direct,
    grpc_index,
    grpc_nowhere,
    no_document,
    own_answers,
)
from holdfast.serve.gateway.state import (
    Front,
    GatewayState,
    KnownService,
    VariantShare,
    literal,
    shares,
)
from holdfast.serve.protocol import marks
from holdfast.serve.records import Limits

# A request is tried so often on each level: where it was to go, then elsewhere, and last where only
# another version is. Each time a replica that was not tried yet is looked for, so often: they are
# drawn by lot.
TRIES_OF_LEVEL: Final = 2
RETRY_DRAWS: Final = 20
RETRY_BASE_S: Final = 0.005
RETRY_BASE_S_MAX: Final = 0.1
# A try may take this part of a request's time: the rest is for another replica.
TRY_FRACTION: Final = 0.5

NAME: Final = "holdfast"
SERVICE_HEADER: Final = "x-holdfast-service"
STALE_HEADER: Final = "x-holdfast-stale-s"
SPILL_HEADER: Final = "x-holdfast-spill"
# The variant of a request whose path names its version.
NAMED: Final = "named"
GRPC_PREFIX: Final = "/inference.GRPCInferenceService/"
HEALTH_PREFIX: Final = "/grpc.health.v1.Health/"
# Calls that are for no model: whoever is there answers them, and asks for no key.
GRPC_WHOLE: Final = ("ServerLive", "ServerReady", "ServerMetadata")
GRPC_INDEX: Final = GRPC_PREFIX + "RepositoryIndex"
# Load and unload, for operators: over gRPC both begin so.
GRPC_OPERATOR: Final = GRPC_PREFIX + "RepositoryModel"
OPERATOR: Final = "/v2/repository/models"
_POST: Final[Json] = {"name": ":method", "string_match": {"exact": "POST"}}
OPENAPI: Final[Json] = {"path": "/openapi.json"}
RATE_FILTER: Final = "envoy.filters.http.local_ratelimit"
BODY_FILTER: Final = "envoy.filters.http.buffer"
_BODY: Final = "envoy.extensions.filters.http.buffer.v3.BufferPerRoute"
# What a service has that asks for nothing else.
USUAL: Final = Limits()
LIMITED: Final = "limited"
# A broken connection, and what a replica marks as another's business. No status: a full queue's 503
# is as full elsewhere, and each further try would keep it so.
RETRY_ON: Final = "connect-failure,refused-stream,reset,retriable-headers"
_RETRIED: Final = (marks.NOT_HERE, marks.ELSEWHERE)


@dataclass(frozen=True, slots=True)
class ServiceRoutes:
    """The routes of one service: those that need its header, those under each of its names, those
    that are its own while it is the only one, and those that one service answers for all."""

    by_header: tuple[Json, ...]
    by_name: Mapping[str, tuple[Json, ...]]
    by_message: Mapping[str, tuple[Json, ...]]  # gRPC, under each of its names
    rarely: Mapping[str, tuple[Json, ...]]  # as `by_name`, tried after those of all services
    alone: tuple[Json, ...]
    whole: tuple[Json, ...]  # gRPC calls that any service may answer
    answers: bool


def service_routes(known: KnownService, front: Front) -> ServiceRoutes:
    divided = shares(known)
    own = [_header_is(SERVICE_HEADER, known.name)]
    called = sorted({known.name, known.service.model})
    anywhere = [{"path_separated_prefix": path} for path in ("/v2", "/predict", "/v1")]
    calls = ({"prefix": prefix} for prefix in (GRPC_PREFIX, HEALTH_PREFIX))
    by_header = [
        _operator(known, front, _match({"prefix": GRPC_OPERATOR}, own), divided, GRPC),
        _operator(
            known, front, _match({"path_separated_prefix": OPERATOR}, [_POST, *own]), divided
        ),
        *(_service(known, front, _match(path, own), divided, GRPC) for path in calls),
        *(route for name in called for route in _named(known, front, name, own)),
        *(_service(known, front, _match(path, own), divided) for path in (*anywhere, OPENAPI)),
    ]
    by_name = {}
    for name in called:
        prefixes = [
            {"path_separated_prefix": f"{path}/{name}"} for path in ("/v2/models", "/predict")
        ]
        by_name[name] = (
            *_named(known, front, name, []),
            *(_service(known, front, prefix, divided) for prefix in prefixes),
        )
    by_message = {
        name: (
            _operator(known, front, model_names.match(name, GRPC_OPERATOR), divided, GRPC),
            _service(known, front, model_names.match(name), divided, GRPC),
        )
        for name in called
    }
    rarely = {
        name: (
            _service(known, front, {"prefix": f"/v1/models/{name}:"}, divided),
            _service(known, front, {"path": f"/v1/models/{name}"}, divided),
            _operator(known, front, _match(_operated(name), [_POST]), divided),
            _service(known, front, _operated(name), divided),  # which takes no other method
        )
        for name in called
    }
    alone = (
        _operator(known, front, {"prefix": GRPC_OPERATOR}, divided, GRPC),
        _service(known, front, {"path": "/v2/models/stats"}, divided),
        _service(known, front, {"prefix": GRPC_PREFIX}, divided, GRPC),
        _service(known, front, OPENAPI, divided),
    )
    whole = tuple(_whole(known, front, divided)) if divided else ()
    return ServiceRoutes(tuple(by_header), by_name, by_message, rarely, alone, whole, bool(divided))


def _operated(name: str) -> Json:
    return {"path_separated_prefix": f"{OPERATOR}/{name}"}


def _whole(known: KnownService, front: Front, divided: tuple[VariantShare, ...]) -> Iterator[Json]:
    """What this service answers for all. Whether somebody is there is no secret: without keys, and
    beside the rate."""
    free = replace(
        known,
        service=replace(known.service, keys=(), limits=replace(known.service.limits, rate_per_s=0)),
    )
    for path in (*(GRPC_PREFIX + name for name in GRPC_WHOLE), GRPC_INDEX):
        yield _route(free, front, {"path": path}, divided, GRPC)
    yield _unending(_route(free, front, {"prefix": HEALTH_PREFIX}, divided, GRPC))


def _unending(route: Json) -> Json:
    """Whoever watches health hears of it for as long as he likes."""
    return {**route, "route": {**route["route"], "timeout": "0s", "idle_timeout": "0s"}}


def _operator(
    known: KnownService,
    front: Front,
    match: Json,
    divided: tuple[VariantShare, ...],
    protocol: str = HTTP,
) -> Json:
    """Like any route of the service, and a key of an operator opens it."""
    made = _service(known, front, match, divided, protocol)
    if not divided:
        return made
    facts = made.get("metadata", {}).get("filter_metadata", {})
    own = keys.operator_metadata(known.name, known.service.operator_keys)
    return {
        **made,
        "metadata": {"filter_metadata": {**facts, **own}},
        "typed_per_filter_config": {
            **made.get("typed_per_filter_config", {}),
            keys.FILTER: keys.enabled(),
        },
    }


def routes(state: GatewayState, made: Mapping[str, ServiceRoutes]) -> Json:
    """All routes, in the order in which they are tried; `made` has those of each service."""
    host: Json = {
        "name": NAME,
        "domains": ["*"],
        "routes": list(_routes(state, made)),
        # What services have in common stands here once: with many of them, routes stay small, and
        # are read fast.
        "retry_policy": _retries(USUAL.timeout_s, tries(state.front)),
        # A full replica lets a request be tried elsewhere once.
        "include_request_attempt_count": True,
        "request_body_buffer_limit": USUAL.body_bytes_max,
        "typed_per_filter_config": {BODY_FILTER: _body(USUAL.body_bytes_max), **_rates(state)},
    }
    region = state.front.region
    whole: Json = {
        "@type": TYPE + "envoy.config.route.v3.RouteConfiguration",
        "name": NAME,
        "virtual_hosts": [host],
        "request_headers_to_add": [_header(marks.GATEWAY_REGION, literal(region))]
        if region
        else [],
        "response_headers_to_add": list(_marks(state)),
        # Clusters come and go by files of their own.
        "validate_clusters": False,
    }
    if not region:
        # What comes from a client under this name is not ours.
        whole["request_headers_to_remove"] = [marks.GATEWAY_REGION]
    return whole


def _marks(state: GatewayState) -> Iterator[Json]:
    """What answers say of how they came about: only what can be the case costs each of them."""
    if state.front.regions or any(
        not at_home(one, state.front) for known in state.services for one in known.replicas
    ):
        yield _header(SPILL_HEADER, "%UPSTREAM_METADATA(holdfast:spill)%")
    if state.stale_s is not None:
        yield _header(STALE_HEADER, str(state.stale_s))


def _routes(state: GatewayState, made: Mapping[str, ServiceRoutes]) -> Iterator[Json]:
    for known in state.services:
        yield from made[known.name].by_header
    for name, known in names(state).items():
        yield from made[known.name].by_name[name]
    several = len(state.services) > 1
    if several:
        for name, known in names(state).items():
            yield from made[known.name].by_message[name]
    index = _index(state, made)
    yield from _any_whole(state, made, index)
    if several:
        yield _named_inside(grpc_nowhere(GRPC_PREFIX, SERVICE_HEADER))
        yield no_document(OPENAPI, SERVICE_HEADER)
    elif state.services:
        yield from made[state.services[0].name].alone
    else:
        yield grpc_nowhere(GRPC_PREFIX, SERVICE_HEADER)
    for name, known in names(state).items():
        yield from made[known.name].rarely[name]
    answering = any(one.answers for one in made.values())
    yield from own_answers(index, state.front.release, answering=answering)


def _index(state: GatewayState, made: Mapping[str, ServiceRoutes]) -> list[tuple[str, int]]:
    """What is served, by name and version. A service with keys does not tell those without one."""
    return [
        (known.name, version)
        for known in state.services
        if made[known.name].answers and not known.service.keys
        for version in sorted({share.version for share in shares(known)})
    ]


def _any_whole(
    state: GatewayState, made: Mapping[str, ServiceRoutes], index: list[tuple[str, int]]
) -> Iterator[Json]:
    """What one service answers for all: the first that has somebody to do it."""
    able = [known for known in state.services if made[known.name].whole]
    there = [one for one in able if any(seen.lost_s is None for seen in one.replicas)]
    for route in next((made[known.name].whole for known in (*there, *able)), ()):
        if route["match"] == {"path": GRPC_INDEX}:
            yield grpc_index(route, index)
        elif len(state.services) > 1 and "prefix" in route["match"]:
            yield _named_inside(route)  # health may be asked for by name
        else:
            yield route


def _named_inside(route: Json) -> Json:
    """The route, for requests whose message says where they go. It names each filter that one of
    those routes may need: a request's filters are chosen before its message has come."""
    own = {
        model_names.FILTER: model_names.enabled(),
        keys.FILTER: keys.enabled(),
        large_messages.FILTER: large_messages.enabled(),
    }
    return {**route, "typed_per_filter_config": {**route.get("typed_per_filter_config", {}), **own}}


def names(state: GatewayState) -> dict[str, KnownService]:
    """Services by what they may be called in a path or a message."""
    found = {known.name: known for known in state.services}
    by_model: dict[str, list[KnownService]] = {}
    for known in state.services:
        by_model.setdefault(known.service.model, []).append(known)
    for model, services in by_model.items():
        if len(services) == 1:
            found.setdefault(model, services[0])
    return dict(sorted(found.items()))


# --- a service -----------------------------------------------------------------------------------


def _named(known: KnownService, front: Front, name: str, headers: list[Json]) -> Iterator[Json]:
    """Paths that name a version themselves."""
    for version in known.versions():
        path = {"path_separated_prefix": f"/v2/models/{name}/versions/{version}"}
        yield _route(known, front, _match(path, headers), (VariantShare(NAMED, version, 1),), HTTP)


def _service(
    known: KnownService,
    front: Front,
    match: Json,
    divided: tuple[VariantShare, ...],
    protocol: str = HTTP,
) -> Json:
    return _route(known, front, match, divided, protocol) if divided else _not_yet(known, match)


def _not_yet(known: KnownService, match: Json) -> Json:
    text = local_replies.text(
        f"service {known.name} has no version to answer with yet",
        fix=f"try again; holdfast services {known.name} says what it waits for",
    )
    return direct(match, 503, text)


def _route(
    known: KnownService, front: Front, match: Json, divided: tuple[VariantShare, ...], protocol: str
) -> Json:
    limits = known.service.limits
    action: Json = {
        "weighted_clusters": {"clusters": [_variant(known, one, protocol) for one in divided]},
        "timeout": seconds(limits.timeout_s),
    }
    if limits.timeout_s != USUAL.timeout_s:
        action["retry_policy"] = _retries(limits.timeout_s, tries(front))
    if known.service.sticky_header:
        action["hash_policy"] = [{"header": {"header_name": known.service.sticky_header}}]
        action["weighted_clusters"]["use_hash_policy"] = True
    made: Json = {"name": known.name, "match": match, "route": action}
    if known.service.predictions.topic and not front.access_log:
        # Nobody else gives it an id, and each try of it shall have the same.
        made["request_headers_to_add"] = [
            {**_header(marks.REQUEST_ID, "%UNIQUE_ID%"), "append_action": "ADD_IF_ABSENT"}
        ]
    own: Json = {}
    if protocol == GRPC:
        own[large_messages.FILTER] = large_messages.enabled()
        # A stream has no end to wait for.
        own[BODY_FILTER] = {"@type": TYPE + _BODY, "disabled": True}
    elif limits.body_bytes_max != USUAL.body_bytes_max:
        own[BODY_FILTER] = _body(limits.body_bytes_max)
    if limits.body_bytes_max != USUAL.body_bytes_max:
        made["request_body_buffer_limit"] = limits.body_bytes_max
    facts: Json = {}
    if known.service.keys:
        facts |= keys.metadata(known.service.keys)
        own[keys.FILTER] = keys.enabled()
    if limits.rate_per_s > 0:
        facts |= {METADATA: {LIMITED: known.name}}
    if facts:
        made["metadata"] = {"filter_metadata": facts}
    if own:
        made["typed_per_filter_config"] = own
    return made


def _variant(known: KnownService, share: VariantShare, protocol: str) -> Json:
    """Clients do not choose: what they send under these names is overwritten."""
    instead = [] if share.instead is None else [_header(marks.INSTEAD, str(share.instead))]
    secret = known.service.secret
    made: Json = {
        "name": cluster_name(known.name, share.version, protocol),
        "weight": share.weight,
        "request_headers_to_add": [
            _header(marks.VERSION, str(share.version)),
            _header(marks.VARIANT, literal(share.variant)),
            *instead,
            *([_header(marks.SECRET, secret)] if secret else []),
        ],
    }
    if not instead:
        made["request_headers_to_remove"] = [marks.INSTEAD]
    return made


def _body(most: int) -> Json:
    return {"@type": TYPE + _BODY, "buffer": {"max_request_bytes": most}}


def tries(front: Front) -> int:
    """How often a request may be tried: some times on each level that a cluster may have. Those are
    home, each other region, and those that have only another version; a gateway in a region expects
    another one even if none was named."""
    return TRIES_OF_LEVEL * (2 + max(len(front.regions), bool(front.region)))


@lru_cache(maxsize=256)
def _retries(timeout_s: float, tries: int) -> Json:
    return {
        "retry_on": RETRY_ON,
        "retriable_headers": [{"name": name, "present_match": True} for name in _RETRIED],
        "num_retries": tries - 1,
        "per_try_timeout": seconds(timeout_s * TRY_FRACTION),
        "host_selection_retry_max_attempts": RETRY_DRAWS,
        "retry_host_predicate": [
            {
                "name": "envoy.retry_host_predicates.previous_hosts",
                "typed_config": {
                    "@type": TYPE
                    + "envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate"
                },
            }
        ],
        "retry_priority": {
            "name": "envoy.retry_priorities.previous_priorities",
            "typed_config": {
                "@type": TYPE
                + "envoy.extensions.retry.priority.previous_priorities.v3.PreviousPrioritiesConfig",
                "update_frequency": TRIES_OF_LEVEL,
            },
        },
        "retry_back_off": {
            "base_interval": seconds(RETRY_BASE_S),
            "max_interval": seconds(RETRY_BASE_S_MAX),
        },
    }


# --- rates ---------------------------------------------------------------------------------------


def _rates(state: GatewayState) -> Json:
    """One bucket for each service, whichever of its routes a request takes."""
    limited = [one for one in state.services if one.service.limits.rate_per_s > 0]
    if not limited:
        return {}
    buckets = {
        "@type": TYPE + "envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit",
        "stat_prefix": "rate",
        "status": {"code": "TooManyRequests"},
        "filter_enabled": _always(),
        "filter_enforced": _always(),
        # Envoy wants a bucket for whoever has none of his own: one without a bottom.
        "token_bucket": _bucket(2.0**32 - 1),
        "always_consume_default_token_bucket": False,
        "response_headers_to_add": [_header("retry-after", "1")],
        "rate_limits": [{"actions": [{"metadata": _limited()}]}],
        "descriptors": [
            {
                "entries": [{"key": LIMITED, "value": known.name}],
                "token_bucket": _bucket(known.service.limits.rate_per_s),
            }
            for known in limited
        ],
    }
    return {RATE_FILTER: buckets}


def _bucket(rate_per_s: float) -> Json:
    """A second's worth may come at once."""
    tokens = max(1, math.floor(rate_per_s))
    return {
        "max_tokens": tokens,
        "tokens_per_fill": tokens,
        "fill_interval": seconds(tokens / rate_per_s),
    }


def _limited() -> Json:
    """Which bucket a request is for: its route says so."""
    return {
        "descriptor_key": LIMITED,
        "metadata_key": {"key": METADATA, "path": [{"key": LIMITED}]},
        "source": "ROUTE_ENTRY",
        "skip_if_absent": True,
    }


def _always() -> Json:
    return {"default_value": {"numerator": 100, "denominator": "HUNDRED"}}


# --- small things --------------------------------------------------------------------------------


def _match(path: Json, headers: list[Json]) -> Json:
    return {**path, "headers": headers} if headers else dict(path)


def _header_is(name: str, value: str) -> Json:
    return {"name": name, "string_match": {"exact": value}}


def _header(name: str, value: str) -> Json:
    return {
        "header": {"key": name, "value": value},
        "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
    }
