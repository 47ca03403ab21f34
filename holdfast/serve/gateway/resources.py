"""Envoy's configuration, from what is known. Pure: the same state gives the same bytes.

One kind of resource to a file; the names are relative to the gateway's folder.
The version in each file is the digest of what is in it: Envoy tells which one it has taken.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Final

import msgspec

from holdfast.serve.gateway import large_messages, local_replies, model_names
from holdfast.serve.gateway.clusters import (
    PROTOCOLS,
    TYPE,
    Json,
    Source,
    cluster,
    file_source,
    seconds,
    source,
)
from holdfast.serve.gateway.keys import FILTER as KEYS_FILTER
from holdfast.serve.gateway.keys import LUA, PROGRAM
from holdfast.serve.gateway.local_replies import INDEX_LUA, INDEX_PROGRAM
from holdfast.serve.gateway.routes import (
    BODY_FILTER,
    NAME,
    RATE_FILTER,
    ServiceRoutes,
    routes,
    service_routes,
)
from holdfast.serve.gateway.state import (
    Front,
    GatewayState,
    GatewayTls,
    KnownService,
    VariantShare,
    shares,
)
from holdfast.serve.protocol import marks
from holdfast.wire.limits import CLIENT_HEAD_S, CLIENT_IDLE_S

VERSION: Final = "version_info"


@dataclass(frozen=True, slots=True)
class ServiceResources:
    """What one service brings: its clusters, its routes. And what they were made of: what is made
    of the same again need not be made again."""

    known: KnownService
    front: Front
    clusters: Mapping[tuple[int, str], Json]  # by version and protocol
    routes: ServiceRoutes
    sources: Mapping[int, Source]  # by version
    divided: tuple[VariantShare, ...]


def part(
    known: KnownService, front: Front, before: ServiceResources | None = None
) -> ServiceResources:
    """`before`: an older one of the same service; what has not changed is taken from there."""
    if before is not None and (before.front != front or before.known.service != known.service):
        before = None
    divided = shares(known)
    instead = {share.version: share.instead for share in divided}
    sources = {
        version: source(known, version, instead.get(version)) for version in known.versions()
    }
    clusters = {}
    for version, protocol in product(sources, PROTOCOLS):
        if before is not None and before.sources.get(version) == sources[version]:
            clusters[version, protocol] = before.clusters[version, protocol]
        else:
            made = cluster(known, version, protocol, front, instead.get(version))
            clusters[version, protocol] = made
    if before is not None and before.divided == divided and before.sources.keys() == sources.keys():
        paths = before.routes
    else:
        paths = service_routes(known, front)
    return ServiceResources(known, front, clusters, paths, sources, divided)


def parts(
    state: GatewayState, before: Mapping[str, ServiceResources] | None = None
) -> dict[str, ServiceResources]:
    """The parts of all services. Those of `before` that would be the same are taken from there:
    with many services, one that changes costs what it costs alone."""
    found = {}
    for known in state.services:
        old = before.get(known.name) if before else None
        same = old is not None and old.known == known and old.front == state.front
        found[known.name] = old if old is not None and same else part(known, state.front, old)
    return found


def resources(
    state: GatewayState, made: Mapping[str, ServiceResources] | None = None
) -> dict[str, Json]:
    """Every file that Envoy shall have. `made`: the parts of its services, if they are there."""
    made = parts(state) if made is None else made
    files: dict[str, Json] = {}
    clusters = [each for one in made.values() for each in one.clusters.values()]
    files[CLUSTERS_FILE] = response(sorted(clusters, key=lambda one: str(one["name"])))
    paths = {name: one.routes for name, one in made.items()}
    files[ROUTES_FILE] = response([routes(state, paths)])
    if state.front.tls is not None:
        files[CERTIFICATE_FILE] = response([secret(state.front.tls)])
    files[LISTENER_FILE] = _listener(state.front)
    return files


@lru_cache(maxsize=4)  # a gateway has one front, and it does not change
def _listener(front: Front) -> Json:
    return response([listener(front)])


def response(found: Sequence[Json]) -> Json:
    """A file as Envoy reads it."""
    return {VERSION: digest(found), "resources": list(found)}


def digest(found: Sequence[Json]) -> str:
    return hashlib.sha256(msgspec.json.encode(found, order="sorted")).hexdigest()[:16]


def routed(files: Mapping[str, Json]) -> frozenset[str]:
    """The clusters that these routes send requests to."""
    return frozenset(str(variant["name"]) for variant in _variants(files))


def leaning(files: Mapping[str, Json]) -> frozenset[tuple[str, int]]:
    """Of these clusters, which version may answer in place of their own, as these routes say."""
    return frozenset(
        (str(variant["name"]), int(added["header"]["value"]))
        for variant in _variants(files)
        for added in variant["request_headers_to_add"]
        if added["header"]["key"] == marks.INSTEAD
    )


def _variants(files: Mapping[str, Json]) -> Iterator[Json]:
    for host in files[ROUTES_FILE]["resources"][0]["virtual_hosts"]:
        for route in host["routes"]:
            yield from route.get("route", {}).get("weighted_clusters", {}).get("clusters", [])


# --- listener -------------------------------------------------------------------------------------
# The client side of Envoy: its listener, its access log, its certificate, its start. Pure.


# Connections of clients; each takes some 30 KiB.
CLIENT_CONNECTIONS_MAX: Final = 20_000
# Requests at the same time on one HTTP/2 connection; more is a mistake or an attack.
CLIENT_STREAMS_MAX: Final = 1_000
# How much Envoy keeps of a client's connection before it stops reading from it.
CLIENT_BUFFER_BYTES: Final = 1024 * 1024
# Envoy gives memory back to the system that it has freed: at once while it holds more than the
# first, which costs twice the work for a body; of less so many bytes so often, once it did not need
# them for five minutes.
ENVOY_HELD_BYTES_MAX: Final = 256 * 1024 * 1024
ENVOY_RELEASE_BYTES: Final = 32 * 1024 * 1024
ENVOY_RELEASE_S: Final = 1.0

ACCESS_LOG: Final = "access.log"
ADMIN_SOCKET: Final = "admin.sock"
LISTENER_FILE: Final = "lds/listener.json"
CLUSTERS_FILE: Final = "cds/clusters.json"
ROUTES_FILE: Final = "rds/routes.json"
CERTIFICATE_FILE: Final = "sds/certificate.json"
CERTIFICATE: Final = "certificate"
_CONNECTIONS: Final = (
    "envoy.extensions.resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig"
)
_HCM: Final = "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"


def bootstrap(name: str, region: str) -> Json:
    """What Envoy is started with; paths are relative to the gateway's folder, where it runs."""
    return {
        "node": {"id": name, "cluster": "holdfast", "locality": {"region": region}},
        "admin": {"address": {"pipe": {"path": ADMIN_SOCKET, "mode": 0o600}}},
        "dynamic_resources": {
            "lds_config": file_source(LISTENER_FILE),
            "cds_config": file_source(CLUSTERS_FILE),
        },
        # Else what large bodies took stays Envoy's for ever. Below the limit it goes only when it
        # was not needed for minutes, as the allocator counts them.
        "memory_allocator_manager": {
            "soft_memory_limit_bytes": ENVOY_HELD_BYTES_MAX,
            "bytes_to_release": ENVOY_RELEASE_BYTES,
            "memory_release_interval": seconds(ENVOY_RELEASE_S),
        },
        "overload_manager": {
            "resource_monitors": [
                {
                    "name": "envoy.resource_monitors.global_downstream_max_connections",
                    "typed_config": {
                        "@type": TYPE + _CONNECTIONS,
                        "max_active_downstream_connections": CLIENT_CONNECTIONS_MAX,
                    },
                }
            ],
        },
    }


def listener(front: Front) -> Json:
    chain: Json = {"filters": [{"name": "http", "typed_config": _connections(front)}]}
    if front.tls is not None:
        chain["transport_socket"] = _tls()
    return {
        "@type": TYPE + "envoy.config.listener.v3.Listener",
        "name": NAME,
        "address": {"socket_address": {"address": front.host, "port_value": front.port}},
        "per_connection_buffer_limit_bytes": CLIENT_BUFFER_BYTES,
        # A new Envoy takes the port while the old one still ends its requests.
        "enable_reuse_port": True,
        "filter_chains": [chain],
    }


def secret(tls: GatewayTls) -> Json:
    return {
        "@type": TYPE + "envoy.extensions.transport_sockets.tls.v3.Secret",
        "name": CERTIFICATE,
        "tls_certificate": {
            "certificate_chain": {"filename": tls.certificate},
            "private_key": {"filename": tls.key},
        },
    }


def _tls() -> Json:
    source = {"name": CERTIFICATE, "sds_config": file_source(CERTIFICATE_FILE)}
    return {
        "name": "tls",
        "typed_config": {
            "@type": TYPE + "envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
            "common_tls_context": {
                "alpn_protocols": ["h2", "http/1.1"],
                "tls_certificate_sds_secret_configs": [source],
                "tls_params": {"tls_minimum_protocol_version": "TLSv1_2"},
            },
        },
    }


def _connections(front: Front) -> Json:
    made: Json = {
        "@type": TYPE + _HCM,
        "stat_prefix": "front",
        "codec_type": "AUTO",
        "rds": {"route_config_name": NAME, "config_source": file_source(ROUTES_FILE)},
        "http_filters": _filters(),
        "local_reply_config": local_replies.config(),
        "server_name": "holdfast",
        # Whoever connects is outside: headers that would steer Envoy are taken away.
        "use_remote_address": True,
        # An id that nobody writes down is for nobody. What a client sends goes through.
        "generate_request_id": front.access_log,
        "preserve_external_request_id": True,
        "always_set_request_id_in_response": True,
        "normalize_path": True,
        "merge_slashes": True,
        "path_with_escaped_slashes_action": "KEEP_UNCHANGED",
        "common_http_protocol_options": {"idle_timeout": seconds(CLIENT_IDLE_S)},
        "http2_protocol_options": {"max_concurrent_streams": CLIENT_STREAMS_MAX},
        "request_headers_timeout": seconds(CLIENT_HEAD_S),
        "stream_idle_timeout": seconds(CLIENT_IDLE_S),
    }
    if front.access_log:
        made["access_log"] = [_access_log()]
    return made


def _filters() -> list[Json]:
    """Which service, then keys, then rates, then the body: nobody without a key uses up a service's
    rate."""
    kind = TYPE + "envoy.extensions.filters.http."
    programs = {PROGRAM: {"inline_string": LUA}, INDEX_PROGRAM: {"inline_string": INDEX_LUA}}
    lua: Json = {"@type": kind + "lua.v3.Lua", "source_codes": programs}
    return [
        # Disabled: only a route with settings of its own asks for them.
        model_names.http_filter(),
        {"name": KEYS_FILTER, "typed_config": lua, "disabled": True},
        {
            "name": RATE_FILTER,
            "typed_config": {
                "@type": kind + "local_ratelimit.v3.LocalRateLimit",
                "stat_prefix": "rate",
            },
            "disabled": True,
        },
        {
            "name": BODY_FILTER,
            "typed_config": {"@type": kind + "buffer.v3.Buffer", "max_request_bytes": 1},
            "disabled": True,
        },
        large_messages.http_filter(),
        {
            "name": "envoy.filters.http.router",
            "typed_config": {
                "@type": kind + "router.v3.Router",
                "suppress_envoy_headers": True,
                # Counters by status and by cluster: looked up by name for each
                # request, and the access log says more.
                "dynamic_stats": False,
            },
        },
    ]


def _access_log() -> Json:
    return {
        "name": "file",
        "typed_config": {
            "@type": TYPE + "envoy.extensions.access_loggers.file.v3.FileAccessLog",
            "path": ACCESS_LOG,
            "log_format": {
                "omit_empty_values": True,
                "json_format": {
                    "time": "%START_TIME(%Y-%m-%dT%H:%M:%S.%3fZ)%",
                    "id": "%REQ(X-REQUEST-ID)%",
                    # For what was no request, and has no id.
                    "connection": "%CONNECTION_ID%",
                    "service": "%ROUTE_NAME%",
                    "version": "%REQ(X-HOLDFAST-VERSION)%",
                    "variant": "%REQ(X-HOLDFAST-VARIANT)%",
                    "arm": "%REQ(X-HOLDFAST-VARIANT)%",  # what it was called, for one release
                    "answered_by_version": "%RESP(X-HOLDFAST-VERSION)%",
                    "replica": "%UPSTREAM_METADATA(holdfast:replica)%",
                    "region": "%UPSTREAM_METADATA(holdfast:region)%",
                    "method": "%REQ(:METHOD)%",
                    "path": "%REQ(X-ENVOY-ORIGINAL-PATH?:PATH)%",
                    "status": "%RESPONSE_CODE%",
                    "ms": "%DURATION%",
                    "upstream_ms": "%RESPONSE_DURATION%",
                    "tries": "%UPSTREAM_REQUEST_ATTEMPT_COUNT%",
                    "in_bytes": "%BYTES_RECEIVED%",
                    "out_bytes": "%BYTES_SENT%",
                    "flags": "%RESPONSE_FLAGS%",
                    "client": "%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%",
                },
            },
        },
    }
