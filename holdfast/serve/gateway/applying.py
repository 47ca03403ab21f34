"""Bringing files into Envoy, in an order that loses no request (`steps`), and seeing that it took
them. Envoy says of each file which version it has taken. What it has not taken is written again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

from holdfast.serve.gateway.admin import Admin
from holdfast.serve.gateway.clusters import Json
from holdfast.serve.gateway.files import Files
from holdfast.serve.gateway.listener import CLUSTERS_FILE, LISTENER_FILE, ROUTES_FILE
from holdfast.serve.gateway.resources import VERSION
from holdfast.serve.gateway.steps import AwaitSettled, AwaitTaken, AwaitWarm, Write, order, steps
from holdfast.wire import logs
from holdfast.wire.backoff import Backoff
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
        has checked who is in them. One that does not come in time is routed to anyway: the course
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
