"""Who should decide and is not there: in words, and for commands that wait for him.

Known from the plane (nobody leads, nobody conducts) and from this machine's folder, which knows of
a death before a session has ended, and whether somebody is about to come back.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rich.text import Text

from holdfast.cli import listing, output, times
from holdfast.wire.errors import Unavailable
from holdfast.wire.limits import NOBODY_S, WAIT_SAYS_S

if TYPE_CHECKING:
    from holdfast.cli.opening import Opened
    from holdfast.cluster import Cluster
    from holdfast.launch.health import Missing

COORDINATOR: Final = "coordinator"
CONDUCTOR: Final = "conductor"
_LOOK_S: Final = 1.0
_SAY_AGAIN_S: Final = 5.0


@dataclass(frozen=True)
class Absence:
    """Somebody who is not there. `hopeless`: he does not come unless somebody does something."""

    kind: str
    text: str
    since_s: float = 0.0
    hopeless: bool = False


def since(at_s: float) -> str:
    """` since 00:12:31 (2m10s)`, or nothing if that is not known."""
    return f" since {times.clock(at_s)} ({times.ago(at_s)})" if at_s else ""


def sentences(cluster: Cluster, found: Sequence[Missing] | None = None) -> list[str]:
    """What should run on this machine and does not, each in a sentence."""
    from holdfast.launch.health import missing

    now_s = time.time()
    known = missing(cluster) if found is None else found
    return [one.sentence(now_s, since(one.since_s)) for one in known]


def absent(found: Opened, kind: str) -> Absence | None:
    """Whether nobody of this kind leads now: a coordinator, or a conductor."""
    from holdfast.cluster import processes
    from holdfast.coordination import Election
    from holdfast.launch.health import EFFECTS, missing
    from holdfast.serve.records import CONDUCTOR as CONDUCTOR_PATH
    from holdfast.wire.places import LEADER_PATH

    path = LEADER_PATH if kind == COORDINATOR else CONDUCTOR_PATH
    leader = Election(found.session, path).current_leader()
    here = {one.name: one for one in processes(found.cluster) if one.kind == kind}
    gone = {one.name: one for one in missing(found.cluster) if one.kind == kind}
    if leader is not None and leader.name not in gone:
        process = here.get(leader.name)
        if process is None or process.facts.get("term") == leader.term:
            return None
    nobody = "no coordinator leads" if kind == COORDINATOR else "nobody conducts"
    if here:
        one = min(here.values(), key=lambda each: each.since_s)
        came = f"{one.name} was started at {times.clock(one.since_s)} and takes over soon"
        return Absence(kind, f"{nobody}: {EFFECTS[kind]}; {came}", one.since_s)
    if gone:
        dead = min(gone.values(), key=lambda each: each.hopeless)
        told = dead.sentence(time.time(), since(dead.since_s))
        return Absence(kind, told, dead.since_s, dead.hopeless)
    start = "`holdfast up` starts one" if kind == COORDINATOR else "`holdfast serve` starts one"
    where = "" if found.cluster.is_home else " where the cluster was made"
    return Absence(kind, f"{nobody}: {EFFECTS[kind]}; {start}{where}")


def warnings(found: Opened, *, services: bool) -> list[str]:
    """Who is not there and should be, for a listing. `services`: something is served."""
    kinds = [COORDINATOR, *([CONDUCTOR] if services else [])]
    return [one.text for kind in kinds if (one := absent(found, kind)) is not None]


def warn(lines: Sequence[str]) -> None:
    """Beside the result, on stderr."""
    for line in lines:
        listing.say(output.err(), line, style="yellow")


class Waiting:
    """For a command that waits: says for what, and stops when that cannot come.

    `look` is called again and again, with what is waited for in words. On a terminal whoever calls
    shows that himself; elsewhere it is a line on stderr, after a moment, and when it changes.
    `Unavailable`: whoever would do it is not there, and does not come.
    """

    def __init__(
        self,
        found: Opened,
        *kinds: str,
        quiet: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._found = found
        self._kinds = kinds
        self._clock = clock
        self._began_s = clock()
        self._looked_s = 0.0
        self._alone_s: dict[str, float] = {}
        self._absences: list[Absence] = []
        self._said, self._said_s = "", 0.0
        self._lines = not quiet and not sys.stderr.isatty()

    def look(self, what: str) -> str:
        """What is waited for, with who is missing; the first of them, if there is one."""
        now_s = self._clock()
        if now_s < self._began_s + WAIT_SAYS_S:
            return what
        if now_s >= self._looked_s + _LOOK_S:
            self._looked_s = now_s
            self._absences = self._nobody(now_s)
        told = self._absences[0].text if self._absences else what
        due = not self._said or now_s >= self._said_s + _SAY_AGAIN_S
        if self._lines and due and told != self._said:
            self._said, self._said_s = told, now_s
            output.err().print(Text(f"waiting: {told}", style="dim"))
        return told

    def _nobody(self, now_s: float) -> list[Absence]:
        missing = [one for kind in self._kinds if (one := absent(self._found, kind)) is not None]
        kinds = {one.kind for one in missing}
        self._alone_s = {kind: self._alone_s.get(kind, now_s) for kind in kinds}
        for one in missing:
            if one.hopeless or now_s >= self._alone_s[one.kind] + NOBODY_S:
                raise Unavailable(
                    f"nobody is there to do it: {one.text}",
                    why="what was asked for is kept, and is done when somebody is there",
                    fix="holdfast up (then: holdfast status)",
                )
        return missing
