"""Envoy's configuration, from what is known. Pure: the same state gives the same bytes.

One kind of resource to a file; the names are relative to the gateway's folder.
The version in each file is the digest of what is in it: Envoy tells which one it has taken.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final

import msgspec

from holdfast.serve.gateway.arms import shares
from holdfast.serve.gateway.clusters import (
    PROTOCOLS,
    Json,
    cluster,
)
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

VERSION: Final = "version_info"


@dataclass(frozen=True, slots=True)
class Part:
    """What one service brings: its clusters, its routes."""

    known: Known
    front: Front
    clusters: tuple[Json, ...]
    routes: ServiceRoutes


def part(known: Known, front: Front) -> Part:
    instead = {share.version: share.instead for share in shares(known)}
    clusters = [
        cluster(known, version, protocol, front, instead.get(version))
        for version, protocol in product(known.versions(), PROTOCOLS)
    ]
    return Part(known, front, tuple(clusters), service_routes(known))


def parts(state: State, before: Mapping[str, Part] | None = None) -> dict[str, Part]:
    """The parts of all services. Those of `before` that would be the same are taken from there:
    with many services, one that changes costs what it costs alone."""
    found = {}
    for known in state.services:
        old = before.get(known.name) if before else None
        same = old is not None and old.known == known and old.front == state.front
        found[known.name] = old if old is not None and same else part(known, state.front)
    return found


def resources(state: State, made: Mapping[str, Part] | None = None) -> dict[str, Json]:
    """Every file that Envoy shall have. `made`: the parts of its services, if they are there."""
    made = parts(state) if made is None else made
    files: dict[str, Json] = {}
    clusters = [each for one in made.values() for each in one.clusters]
    files[CLUSTERS_FILE] = response(sorted(clusters, key=lambda one: str(one["name"])))
    paths = {name: one.routes for name, one in made.items()}
    files[ROUTES_FILE] = response([routes(state, paths)])
    if state.front.tls is not None:
        files[CERTIFICATE_FILE] = response([secret(state.front.tls)])
    files[LISTENER_FILE] = response([listener(state.front)])
    return files


def response(found: Sequence[Json]) -> Json:
    """A file as Envoy reads it."""
    return {VERSION: digest(found), "resources": list(found)}


def digest(found: Sequence[Json]) -> str:
    return hashlib.sha256(msgspec.json.encode(found, order="sorted")).hexdigest()[:16]


def routed(files: Mapping[str, Json]) -> frozenset[str]:
    """The clusters that these routes send requests to."""
    found = set()
    for host in files[ROUTES_FILE]["resources"][0]["virtual_hosts"]:
        for route in host["routes"]:
            for one in route.get("route", {}).get("weighted_clusters", {}).get("clusters", []):
                found.add(str(one["name"]))
    return frozenset(found)
