"""In which order Envoy gets its files, so that no request is lost on the way. Pure.

A route may name a cluster only when Envoy has it, checked and warm; a cluster may go only when no
route names it, and a replica that a route leans on as its second choice only when none does. So:
clusters (with all that the present routes need), routes, then what no route needs any more goes.

Envoy checks all replicas of a cluster that changes before it uses it so; one that hangs takes a
second. A change on top of that begins anew: so each waits until the one before is taken up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from holdfast.serve.gateway.clusters import Json, hosts, sibling, with_spares
from holdfast.serve.gateway.listener import (
    CERTIFICATE_FILE,
    CLUSTERS_FILE,
    LISTENER_FILE,
    ROUTES_FILE,
)
from holdfast.serve.gateway.resources import VERSION, leaning, response, routed


@dataclass(frozen=True, slots=True)
class Write:
    """Give Envoy this file."""

    name: str
    content: Json


@dataclass(frozen=True, slots=True)
class AwaitSettled:
    """Go on when Envoy has taken up the last change of these clusters, or `ENVOY_SETTLE_S` later:
    they change again."""

    clusters: frozenset[str]


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


Step = Write | AwaitSettled | AwaitWarm | AwaitTaken | Remove


def steps(before: Mapping[str, Json], files: Mapping[str, Json]) -> Iterator[Step]:
    """How to come from the files that were written last to these ones."""
    if CERTIFICATE_FILE in files:
        yield from _changed(before.get(CERTIFICATE_FILE), files, CERTIFICATE_FILE)
    bridge = _bridge(before, files)
    yield from _clusters(before.get(CLUSTERS_FILE), bridge)
    if _differs(before, files, ROUTES_FILE):
        new = _newly_routed(before, files)
        if new:
            yield AwaitWarm(new)
        yield Write(ROUTES_FILE, files[ROUTES_FILE])
    yield from _changed(before.get(LISTENER_FILE), files, LISTENER_FILE)
    yield AwaitTaken((ROUTES_FILE, LISTENER_FILE))
    yield from _clusters(bridge, files[CLUSTERS_FILE])
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


def second_choices(
    before: Mapping[str, Json], files: Mapping[str, Json]
) -> dict[str, tuple[Json, ...]]:
    """The replicas that the present routes lean on and the next ones do not: those that can answer
    now with the version that such a route names as its second choice. By cluster."""
    if ROUTES_FILE not in before:
        return {}
    there = _by_name(files[CLUSTERS_FILE])
    found = {}
    for name, instead in leaning(before) - leaning(files):
        if name in there:
            other = there.get(sibling(name, instead))
            found[name] = tuple(hosts(other)) if other is not None else ()
    return found


def _newly_routed(before: Mapping[str, Json], files: Mapping[str, Json]) -> frozenset[str]:
    """Clusters that no route has named yet, or leaned on as it will."""
    if ROUTES_FILE not in before:
        return routed(files)
    leans = frozenset(name for name, _ in leaning(files) - leaning(before))
    return (routed(files) - routed(before)) | leans


def _clusters(before: Json | None, after: Json) -> Iterator[Step]:
    if before == after:
        return
    old = _by_name(before) if before is not None else {}
    new = _by_name(after)
    again = frozenset(name for name, one in new.items() if name in old and old[name] != one)
    if again:
        yield AwaitSettled(again)
    yield Write(CLUSTERS_FILE, after)


def _bridge(before: Mapping[str, Json], files: Mapping[str, Json]) -> Json:
    """The clusters of both, each with the replicas that the present routes lean on."""
    after, old = files[CLUSTERS_FILE], before.get(CLUSTERS_FILE)
    if old is None:
        return after
    names = {one["name"] for one in after["resources"]}
    gone = [one for one in old["resources"] if one["name"] not in names]
    leaned = second_choices(before, files)
    held = [with_spares(one, leaned.get(one["name"], ())) for one in after["resources"]]
    if not gone and all(one is made for one, made in zip(after["resources"], held, strict=True)):
        return after
    return response(sorted((*held, *gone), key=lambda one: str(one["name"])))


def _by_name(content: Json) -> dict[str, Json]:
    return {str(one["name"]): one for one in content["resources"]}
