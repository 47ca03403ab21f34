"""What of a cluster should run on this machine and does not: since when, why, and what brings it
back.

Known from the folder alone: what is wanted, who has a record, and what the supervisor says. So it
can be told when nothing else answers.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from holdfast.cluster import Cluster, Process
from holdfast.cluster import processes as registered
from holdfast.cluster.registry import log_path, record_path
from holdfast.launch.processes import server_of
from holdfast.launch.starting import (
    AGENT,
    COORDINATOR,
    GATEWAY,
    ROLLOUT_CONTROLLER,
    SERVER,
    TOPICS,
)
from holdfast.launch.wanted import server_folder
from holdfast.supervise import supervisor, wanted
from holdfast.supervise.supervisor import GAVE_UP, RUNNING, WAITING

DEAD: Final = "dead"
STARTING: Final = "starting"
# What does not go on while nobody of this kind is there.
EFFECTS: Final = {
    SERVER: "nothing is decided; training and serving go on with what they last knew",
    COORDINATOR: "replicas and workers that die are not replaced, and no job starts",
    AGENT: "its workers go on, but none is started or ended here",
    ROLLOUT_CONTROLLER: "rollouts, rollbacks and scaling of services stand still",
    GATEWAY: "Envoy answers with what it last knew, and hears of no new replica or version",
    TOPICS: "who writes to topics waits, and who reads them hears nothing",
    supervisor.KIND: "what dies is not started again",
}
_NOBODY: Final = {
    SERVER: "no coordination server",
    COORDINATOR: "no coordinator",
    AGENT: "no agent",
    ROLLOUT_CONTROLLER: "no rollout controller",
    GATEWAY: "no gateway process",
    TOPICS: "no broker of topics",
    supervisor.KIND: "no supervisor",
}


@dataclass(frozen=True, slots=True)
class MissingProcess:
    """A process that should run here and does not. `state`: `waiting` (the supervisor starts it, at
    `again_s`), `gave up`, or `dead` (nobody starts it). `since_s` 0: nobody knows."""

    kind: str
    name: str
    state: str
    since_s: float = 0.0
    why: str = ""
    again_s: float = 0.0
    others: bool = False  # of its kind, that live here

    @property
    def hopeless(self) -> bool:
        """Whether it does not come back unless somebody does something."""
        return self.state in (GAVE_UP, DEAD)

    def remedy(self, now_s: float) -> str:
        """What brings it back."""
        if self.state == GAVE_UP:
            return f"given up ({self.why}); `holdfast up` tries again"
        if self.state == DEAD:
            return "`holdfast up` starts it"
        pause_s = self.again_s - now_s
        return f"it is started again in {pause_s:.0f} s" if pause_s >= 1 else "it is being started"

    def sentence(self, now_s: float, since: str) -> str:
        """For people; `since` is `since_s` in words."""
        if self.others:
            head = f"{self.kind} {self.name} does not run{since}"
            return f"{head}: {self.remedy(now_s)}"
        where = f" {self.name}" if self.kind in (AGENT, GATEWAY) else ""
        return f"{_NOBODY[self.kind]}{where}{since}: {EFFECTS[self.kind]}; {self.remedy(now_s)}"


def missing(cluster: Cluster) -> list[MissingProcess]:
    """What should run here and does not. Nothing, where `down` was the last that was said."""
    if wanted.is_down(cluster.folder):
        return []
    asked = wanted.read(cluster.folder)
    living = registered(cluster)
    alive = {f"{one.kind} {one.name}" for one in living}
    kinds = {one.kind for one in living}
    keeper = next((one for one in living if one.kind == supervisor.KIND), None)
    works = keeper is not None and not keeper.stopped  # what a stopped one last said is old
    said: Mapping[str, Any] = keeper.facts.get("kept", {}) if keeper and works else {}
    dead = {f"{one.kind} {one.name}": one for one in registered(cluster, ended=True)}
    found = []
    # A cluster that no supervisor keeps: those whom somebody has killed.
    for key in sorted(set(asked or dead) - alive):
        kind, _, name = key.partition(" ")
        if kind not in EFFECTS or (key in asked and asked[key].asked_for.alive):
            continue
        found.append(_one(cluster, kind, name, said.get(key, {}), dead.get(key), kinds))
    if asked and keeper is None:
        # Whoever is kept starts it again.
        since_s = _last_sign_s(cluster, supervisor.KIND, supervisor.NAME)
        state = STARTING if kinds else DEAD
        found.append(MissingProcess(supervisor.KIND, supervisor.NAME, state, since_s, "was killed"))
    if (asked or living) and server_folder(cluster) is not None and server_of(cluster) is None:
        # Whoever has a session with it starts it again.
        found.append(MissingProcess(SERVER, "coordination", STARTING if kinds else DEAD))
    order = {kind: at for at, kind in enumerate(EFFECTS)}
    return sorted(found, key=lambda one: (order[one.kind], one.name))


def _one(
    cluster: Cluster,
    kind: str,
    name: str,
    said: Mapping[str, Any],
    record: Process | None,
    kinds: Collection[str],
) -> MissingProcess:
    others = kind in kinds
    state = str(said.get("state", DEAD))
    if state in (WAITING, GAVE_UP):
        why, again_s = str(said.get("why", "")), float(said.get("again_s", 0.0))
        return MissingProcess(kind, name, state, float(said["since_s"]), why, again_s, others)
    if state == RUNNING:  # it has died this moment, and the supervisor is about to see it
        return MissingProcess(kind, name, STARTING, time.time(), "has just died", 0.0, others)
    why = "was killed" if record is not None else "ended"
    return MissingProcess(kind, name, DEAD, _last_sign_s(cluster, kind, name), why, 0.0, others)


def _last_sign_s(cluster: Cluster, kind: str, name: str) -> float:
    """When it was last known to live: nobody has seen it die."""
    paths = (record_path(cluster, kind, name), log_path(cluster, kind, name))
    return max((path.stat().st_mtime for path in paths if path.exists()), default=0.0)
