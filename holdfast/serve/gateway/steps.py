"""In which order Envoy gets its files, so that no request is lost on the way. Pure.

A route may name a cluster only when Envoy has it, checked and warm; a cluster may go only when no
route names it. So: clusters (the old ones too), routes, then the clusters that are left.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from holdfast.serve.gateway.clusters import Json
from holdfast.serve.gateway.listener import (
    CERTIFICATE_FILE,
    CLUSTERS_FILE,
    LISTENER_FILE,
    ROUTES_FILE,
)
from holdfast.serve.gateway.resources import VERSION, response, routed


@dataclass(frozen=True, slots=True)
class Write:
    """Give Envoy this file."""

    name: str
    content: Json


@dataclass(frozen=True, slots=True)
class AwaitWarm:
    """Go on when Envoy has read the clusters as they are now, and has checked who is in these."""

    clusters: frozenset[str]


@dataclass(frozen=True, slots=True)
class AwaitTaken:
    """Go on when Envoy has taken these files."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Remove:
    """A file that is not needed any more."""

    name: str


Step = Write | AwaitWarm | AwaitTaken | Remove


def steps(before: Mapping[str, Json], files: Mapping[str, Json]) -> Iterator[Step]:
    """How to come from the files that were written last to these ones."""
    if CERTIFICATE_FILE in files:
        yield from _changed(before.get(CERTIFICATE_FILE), files, CERTIFICATE_FILE)
    # Clusters of the present routes stay until those are gone.
    clusters = before.get(CLUSTERS_FILE)
    bridge = _bridge(clusters, files[CLUSTERS_FILE])
    if clusters != bridge:
        yield Write(CLUSTERS_FILE, bridge)
    if _differs(before, files, ROUTES_FILE):
        new = routed(files) - (routed(before) if ROUTES_FILE in before else set())
        if new:
            yield AwaitWarm(new)
        yield Write(ROUTES_FILE, files[ROUTES_FILE])
    yield from _changed(before.get(LISTENER_FILE), files, LISTENER_FILE)
    yield AwaitTaken((ROUTES_FILE, LISTENER_FILE))
    yield from _changed(bridge, files, CLUSTERS_FILE)
    for name in [name for name in before if name not in files]:
        yield Remove(name)


def order(name: str) -> int:
    """Before a file is read, those must be there that it names."""
    return (CERTIFICATE_FILE, CLUSTERS_FILE, ROUTES_FILE, LISTENER_FILE).index(name)


def _changed(before: Json | None, files: Mapping[str, Json], name: str) -> Iterator[Write]:
    if before != files[name]:
        yield Write(name, files[name])


def _differs(before: Mapping[str, Json], files: Mapping[str, Json], name: str) -> bool:
    known = before.get(name)
    return known is None or known[VERSION] != files[name][VERSION]


def _bridge(before: Json | None, after: Json) -> Json:
    """The clusters of both."""
    if before is None:
        return after
    names = {one["name"] for one in after["resources"]}
    gone = [one for one in before["resources"] if one["name"] not in names]
    if not gone:
        return after
    return response(sorted((*after["resources"], *gone), key=lambda one: str(one["name"])))
