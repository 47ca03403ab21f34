"""Who should decide and is not there: in words, and for whoever waits for him.

Known from the plane (no coordinator, or no rollout controller, leads) and from this machine's
folder, which knows of a death before a session has ended, and whether somebody is about to come
back.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from holdfast.client import texts
from holdfast.wire.errors import Unavailable
from holdfast.wire.limits import WAIT_SAYS_S

if TYPE_CHECKING:
    from holdfast.client.opening import Opened

# No coordinator, or no rollout controller, leads for so long, and nothing here is about to start
# one: a command that waits for it stops. A supervisor needs seconds, and so does a standby: the
# session of the one before has to end.
NOBODY_S: Final = 30.0

COORDINATOR: Final = "coordinator"
ROLLOUT_CONTROLLER: Final = "controller"
_LOOK_S: Final = 1.0

# Is told again and again what is waited for, in words.
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Absence:
    """Somebody who is not there. `hopeless`: he does not come unless somebody does something."""

    kind: str
    text: str
    since_s: float = 0.0
    hopeless: bool = False
    fix: str = "holdfast up (then: holdfast status)"


def since(at_s: float) -> str:
    """` since 00:12:31 (2m10s)`, or nothing if that is not known."""
    return f" since {texts.clock(at_s)} ({texts.ago(at_s)})" if at_s else ""


def absent(found: Opened, kind: str) -> Absence | None:
    """Whether nobody of this kind leads now: a coordinator, or a controller."""
    from holdfast.cluster import processes
    from holdfast.coordination import Election
    from holdfast.launch.health import EFFECTS, missing
    from holdfast.serve.records import ROLLOUT_CONTROLLER as ROLLOUT_CONTROLLER_PATH
    from holdfast.wire.names import LEADER_PATH

    path = LEADER_PATH if kind == COORDINATOR else ROLLOUT_CONTROLLER_PATH
    leader = Election(found.session, path).current_leader()
    here = {one.name: one for one in processes(found.cluster) if one.kind == kind}
    gone = {one.name: one for one in missing(found.cluster) if one.kind == kind}
    paused = {name: one for name, one in here.items() if one.stopped}
    if leader is not None and leader.name not in gone and leader.name not in paused:
        process = here.get(leader.name)
        if process is None or process.facts.get("term") == leader.term:
            return None
    nobody = "no coordinator leads" if kind == COORDINATOR else "no rollout controller"
    coming = [one for name, one in here.items() if name not in paused]
    if paused and not coming:
        one = next(iter(paused.values()))
        fix = f"kill -CONT {one.pid}"
        text = f"{one.name} was paused by a signal; `{fix}` lets it go on"
        return Absence(kind, f"{nobody}: {EFFECTS[kind]}; {text}", one.since_s, fix=fix)
    if coming:
        one = min(coming, key=lambda each: each.since_s)
        came = f"{one.name} was started at {texts.clock(one.since_s)} and takes over soon"
        return Absence(kind, f"{nobody}: {EFFECTS[kind]}; {came}", one.since_s)
    if gone:
        dead = min(gone.values(), key=lambda each: each.hopeless)
        text = dead.sentence(time.time(), since(dead.since_s))
        return Absence(kind, text, dead.since_s, dead.hopeless)
    start = "`holdfast up` starts one" if kind == COORDINATOR else "`holdfast serve` starts one"
    where = "" if found.cluster.is_home else " where the cluster was made"
    return Absence(kind, f"{nobody}: {EFFECTS[kind]}; {start}{where}")


def warnings(found: Opened, *, services: bool) -> list[str]:
    """Who is not there and should be, for a listing. `services`: something is served."""
    kinds = [COORDINATOR, *([ROLLOUT_CONTROLLER] if services else [])]
    return [one.text for kind in kinds if (one := absent(found, kind)) is not None]


class WaitReporter:
    """For whoever waits: says for what, and stops when that cannot come.

    `report` is called again and again, with what is waited for in words; `progress` is told that,
    or who is missing. `Unavailable`: whoever would do it is not there, and does not come.
    """

    def __init__(
        self,
        found: Opened,
        *kinds: str,
        progress: Progress | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._found = found
        self._kinds = kinds
        self._progress = progress
        self._clock = clock
        self._began_s = clock()
        self._looked_s = 0.0
        self._alone_s: dict[str, float] = {}
        self._absences: list[Absence] = []

    def report(self, what: str) -> str:
        """What is waited for; the first who is missing, if there is one."""
        now_s = self._clock()
        # Most comes within a moment: nobody is looked for before.
        if now_s >= max(self._began_s + WAIT_SAYS_S, self._looked_s + _LOOK_S):
            self._looked_s = now_s
            self._absences = self._nobody(now_s)
        text = self._absences[0].text if self._absences else what
        if self._progress is not None:
            self._progress(text)
        return text

    def _nobody(self, now_s: float) -> list[Absence]:
        missing = [one for kind in self._kinds if (one := absent(self._found, kind)) is not None]
        kinds = {one.kind for one in missing}
        self._alone_s = {kind: self._alone_s.get(kind, now_s) for kind in kinds}
        for one in missing:
            if one.hopeless or now_s >= self._alone_s[one.kind] + NOBODY_S:
                raise Unavailable(
                    f"nobody is there to do it: {one.text}",
                    why="what was asked for is kept, and is done when somebody is there",
                    fix=one.fix,
                )
        return missing
