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

from holdfast.serve.gateway.arms import Share, shares
from holdfast.serve.gateway.clusters import PROTOCOLS, Json, Source, cluster, source
from holdfast.serve.gateway.listener import (
    CERTIFICATE_FILE,
    CLUSTERS_FILE,
    LISTENER_FILE,
    ROUTES_FILE,
    listener,
    secret,
)
from holdfast.serve.gateway.routes import ServiceRoutes, routes, service_routes
from holdfast.serve.gateway.state import Front, Known, State
from holdfast.serve.protocol import marks

VERSION: Final = "version_info"


@dataclass(frozen=True, slots=True)
class Part:
    """What one service brings: its clusters, its routes. And what they were made of: what is made
    of the same again need not be made again."""

    known: Known
    front: Front
    clusters: Mapping[tuple[int, str], Json]  # by version and protocol
    routes: ServiceRoutes
    sources: Mapping[int, Source]  # by version
    divided: tuple[Share, ...]


def part(known: Known, front: Front, before: Part | None = None) -> Part:
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
    return Part(known, front, clusters, paths, sources, divided)


def parts(state: State, before: Mapping[str, Part] | None = None) -> dict[str, Part]:
    """The parts of all services. Those of `before` that would be the same are taken from there:
    with many services, one that changes costs what it costs alone."""
    found = {}
    for known in state.services:
        old = before.get(known.name) if before else None
        same = old is not None and old.known == known and old.front == state.front
        found[known.name] = old if old is not None and same else part(known, state.front, old)
    return found


def resources(state: State, made: Mapping[str, Part] | None = None) -> dict[str, Json]:
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
    return frozenset(str(arm["name"]) for arm in _arms(files))


def leaning(files: Mapping[str, Json]) -> frozenset[tuple[str, int]]:
    """Of these clusters, which version may answer in place of their own, as these routes say."""
    return frozenset(
        (str(arm["name"]), int(added["header"]["value"]))
        for arm in _arms(files)
        for added in arm["request_headers_to_add"]
        if added["header"]["key"] == marks.INSTEAD
    )


def _arms(files: Mapping[str, Json]) -> Iterator[Json]:
    for host in files[ROUTES_FILE]["resources"][0]["virtual_hosts"]:
        for route in host["routes"]:
            yield from route.get("route", {}).get("weighted_clusters", {}).get("clusters", [])
