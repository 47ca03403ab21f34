"""Bringing files into Envoy, in an order that loses no request (`steps`), and seeing that it took
them. Envoy says of each file which version it has taken. What it has not taken is written again.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from holdfast.serve.gateway.admin import Admin
from holdfast.serve.gateway.clusters import Json, hosts, sibling, with_spares
from holdfast.serve.gateway.resources import (
    CERTIFICATE_FILE,
    CLUSTERS_FILE,
    LISTENER_FILE,
    ROUTES_FILE,
    VERSION,
    leaning,
    response,
    routed,
)
from holdfast.system import disk, logs
from holdfast.system.backoff import Backoff
from holdfast.wire.errors import Full, TimedOut
from holdfast.wire.limits import ENVOY_SETTLE_S, ENVOY_TAKE_S

# Between two looks whether a file was taken: at first, and at most.
ENVOY_TAKE_LOOK_S: Final = 0.001
ENVOY_TAKE_LOOK_S_MAX: Final = 0.02
# A new cluster is asked for by no route before its replicas were checked; not for ever.
ENVOY_WARM_S: Final = 5.0

# Where Envoy's statistics name the version of a file.
_STATISTICS: Final = {
    CLUSTERS_FILE: "cluster_manager.cds",
    LISTENER_FILE: "listener_manager.lds",
    ROUTES_FILE: "http.front.rds.holdfast",
}

log = logs.get(__name__)


class Applying:
    """Knows what was written and what Envoy has. For one thread."""

    def __init__(self, files: Files, admin: Admin) -> None:
        self._files = files
        self._admin = admin
        self._has: dict[str, str] = {}  # of each file, the version that Envoy is known to have

    def prepare(self, files: Mapping[str, Json]) -> None:
        """Write everything, for an Envoy that is about to start. Without room for it that one has
        what an earlier one was given. `Full`: there is nothing of that kind either."""
        self._has.clear()
        try:
            self._files.write_all({name: files[name] for name in sorted(files, key=order)})
        except Full as error:
            self._files.adopt()
            if not files.keys() <= self._files.written.keys():
                raise
            log.warning("Envoy gets the files of an earlier one", reason=str(error))

    def adopt(self) -> None:
        """An Envoy runs with the files of an earlier gateway."""
        self._has.clear()
        self._files.adopt()

    def apply(self, files: Mapping[str, Json]) -> None:
        """Have Envoy take it all. `Unavailable`, `TimedOut`, `Full`: it has not; call it again."""
        # Its end looks at what was written at its beginning.
        for step in list(steps(dict(self._files.written), files)):
            if isinstance(step, Write):
                self._write(step.name, step.content)
            elif isinstance(step, AwaitSettled):
                self._await_settled(step.clusters)
            elif isinstance(step, AwaitWarm):
                self._await_warm(step.clusters)
            elif isinstance(step, AwaitTaken):
                self._await_taken(step.names)
            else:
                self._files.remove(step.name)

    def compare(self) -> bool:
        """Look whether the files and Envoy are as they should be, and write what is not again.

        Whether all was well.
        """
        broken = {name for name in self._files.written if not self._files.intact(name)}
        stale = {name for name in self._stale() if name not in broken}
        for name in sorted(broken | stale, key=order):
            why = "it was changed by somebody" if name in broken else "Envoy has another version"
            log.warning("a file of Envoy's is written again", file=name, reason=why)
            self._write(name, self._files.written[name])
        return not broken and not stale

    # --- private --------------------------------------------------------------------------------

    def _write(self, name: str, content: Json) -> None:
        self._has.pop(name, None)
        self._files.write(name, content)

    def _await_settled(self, clusters: frozenset[str]) -> None:
        """Wait for clusters that change again: Envoy has read their last change, and uses it. Not
        for ever: who hangs now may hang for long, and others wait too."""

        def settled() -> bool:
            if self._missing((CLUSTERS_FILE,)):
                return False
            return clusters.isdisjoint(self._admin.warming_clusters())

        if not self._within(ENVOY_SETTLE_S, settled):
            names = ", ".join(sorted(clusters))
            log.info("clusters change before their last change is taken up", clusters=names)

    def _await_warm(self, clusters: frozenset[str]) -> None:
        """Wait for clusters that no route named before: Envoy has read them as they are now, and
        has checked who is in them. One that does not come in time is routed to anyway: the plan
        says so, and its requests are refused, not lost."""
        # One that Envoy has read is warming or warm.
        read = self._within(ENVOY_TAKE_S, lambda: not self._missing((CLUSTERS_FILE,)))

        def warm() -> bool:
            if read:
                return clusters.isdisjoint(self._admin.warming_clusters())
            return clusters <= self._admin.warm_clusters()

        if not self._within(ENVOY_WARM_S, warm):
            missing = ", ".join(sorted(clusters - self._admin.warm_clusters()))
            log.warning("clusters are routed to before they are warm", clusters=missing)

    def _await_taken(self, names: tuple[str, ...]) -> None:
        """Wait until Envoy has these; write them again once, in case it looked away."""
        if self._within(ENVOY_TAKE_S, lambda: not self._missing(names)):
            return
        for name in self._missing(names):
            log.warning("Envoy has not taken a file; it is written again", file=name)
            self._write(name, self._files.written[name])
        if not self._within(ENVOY_TAKE_S, lambda: not self._missing(names)):
            raise TimedOut(
                "Envoy has not taken what it was given",
                why=f"it refused, or does not look: {', '.join(self._missing(names))}",
                fix="see envoy.log in the gateway's folder",
            )

    def _within(self, timeout_s: float, condition: Callable[[], bool]) -> bool:
        until_s = time.monotonic() + timeout_s
        looks = Backoff(ENVOY_TAKE_LOOK_S, ENVOY_TAKE_LOOK_S_MAX)
        while not condition():
            if time.monotonic() > until_s:
                return False
            # Ever less often: the thread that answers is the one that reads the file.
            time.sleep(looks.failed())
        return True

    def _missing(self, names: tuple[str, ...]) -> list[str]:
        """Those that Envoy has not taken. It is not asked for what it is known to have: it answers
        on the thread that reads the files."""
        written = self._files.written
        if all(self._has.get(name) == written[name][VERSION] for name in names if name in written):
            return []
        return [name for name in self._stale() if name in names]

    def _stale(self) -> list[str]:
        """Files of which Envoy has another version, or none."""
        taken = self._admin.taken()
        found = []
        for name, content in self._files.written.items():
            statistic = _STATISTICS.get(name)  # certificates are not told of
            if statistic is None:
                continue
            if taken.get(statistic) == content[VERSION]:
                self._has[name] = content[VERSION]
            else:
                self._has.pop(name, None)
                found.append(name)
        return found


# --- steps ----------------------------------------------------------------------------------------
# In which order Envoy gets its files, so that no request is lost on the way. Pure.
#
# A route may name a cluster only when Envoy has it, checked and warm; a cluster may go only when no
# route names it, and a replica that a route leans on as its second choice only when none does. So:
# clusters (with all that the present routes need), routes, then what no route needs any more goes.
#
# Envoy checks all replicas of a cluster that changes before it uses it so; one that hangs takes a
# second. A change on top of that begins anew: so each waits until the one before is taken up.


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


# --- files ----------------------------------------------------------------------------------------
# Files for Envoy: each appears whole, or not at all, by a move into its directory.
#
# They are not forced to disk: a machine that crashed has lost its Envoy too, and the next gateway
# writes all of them before it starts one.


def spelled(content: Mapping[str, object]) -> bytes:
    return msgspec.json.encode(content, order="sorted") + b"\n"


class Files:
    """The files of one gateway, under its folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._written: dict[str, Json] = {}

    @property
    def written(self) -> Mapping[str, Json]:
        """What was written last, by name."""
        return self._written

    def write(self, name: str, content: Json) -> None:
        """Envoy sees a move, and nothing else: a change in place it would not notice. `Full`: there
        is no room, and what was there stays."""
        self._draft(name, content)
        self._move(name, content)

    def write_all(self, contents: Mapping[str, Json]) -> None:
        """In this order; `Full`: there is no room for all of them, and what was there stays."""
        for name, content in contents.items():
            self._draft(name, content)
        for name, content in contents.items():
            self._move(name, content)

    def _draft(self, name: str, content: Json) -> None:
        unfinished = self._unfinished(name)
        with disk.room_for(unfinished):
            (self._folder / name).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        disk.draft(unfinished, spelled(content))

    def _move(self, name: str, content: Json) -> None:
        with disk.room_for(self._folder / name):
            self._unfinished(name).replace(self._folder / name)
        self._written[name] = content

    def _unfinished(self, name: str) -> Path:
        """Beside the directory, not in it: each move within it makes Envoy look."""
        directory = (self._folder / name).parent
        return directory.with_name(f"{directory.name}.draft")

    def adopt(self) -> None:
        """What lies there was written by an earlier gateway, and an Envoy uses it."""
        for path in self._folder.glob("?ds/**/*.json"):
            try:
                content = json.loads(path.read_bytes())
            except ValueError:
                continue  # somebody broke it: it is written anew
            if isinstance(content, dict) and "version_info" in content:
                self._written[str(path.relative_to(self._folder))] = content

    def remove(self, name: str) -> None:
        self._written.pop(name, None)
        shutil.rmtree((self._folder / name).parent, ignore_errors=True)

    def intact(self, name: str) -> bool:
        """Whether the file holds what was written."""
        try:
            return (self._folder / name).read_bytes() == spelled(self._written[name])
        except FileNotFoundError:
            return False
