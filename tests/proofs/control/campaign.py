"""Rounds of jobs under a schedule of faults, until enough was killed; then the checks."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from holdfast.control.store.plane import ControlPlane
from holdfast.coordination import Session
from holdfast.wire.errors import Conflict
from tests.proofs.control import breakages, checks
from tests.proofs.control.checks import FINAL, Ground, Violation
from tests.proofs.control.cluster import ProofCluster
from tests.proofs.control.counting import Counting, results, words_of
from tests.proofs.control.events import Commit, Event, Freed, Kept, Status, Term, View
from tests.proofs.control.faults import strikes
from tests.proofs.control.stories import story
from tests.proofs.control.watched_cluster import WatchedCluster, played
from tests.proofs.control.watcher import Watcher
from tests.proofs.patience import PATIENCE_S, patiently

# Without any progress for so long nothing goes on any more.
STUCK_S: Final = 600.0
CAPACITIES: Final = {"a": 3.0, "b": 3.0, "c": 2.0}
# Workers there are forked from a process that has imported torch; elsewhere they are started cold.
WARM: Final = frozenset({"a"})


class Stuck(Violation):
    """Nothing goes on, though everything is there."""

    def __init__(self, what: str) -> None:
        super().__init__("progress", what)


@dataclass(frozen=True, slots=True)
class Plan:
    """What a proof does."""

    seed: int
    kills: int
    plane: str = "embedded"
    store: str = "folder"
    steps: int = 400
    step_ms: int = 15
    sabotage: str = ""

    @property
    def command(self) -> str:
        """What runs it again."""
        options = f"--kills {self.kills} --seed {self.seed} --plane {self.plane}"
        more = f"--store {self.store} --steps {self.steps} --step-ms {self.step_ms}"
        broken = f" --sabotage {self.sabotage!r}" if self.sabotage else ""
        return f"python -m tests.proofs.control {options} {more}{broken}"


class Campaign:
    """One run over a folder of its own."""

    def __init__(self, plan: Plan, folder: Path, say: Callable[[str], None]) -> None:
        self.plan = plan
        self.folder = folder
        self.say = say
        self.tally: Counter[str] = Counter()
        self.cluster = ProofCluster(
            folder, plan.plane, plan.store, 2, dict(CAPACITIES), warm=WARM, sabotaged=plan.sabotage
        )
        self.watcher: Watcher | None = None
        self.jobs: dict[str, Counting] = {}  # all that were ever submitted
        self._open: list[Counting] = []
        self._round = 0
        self._moved: tuple[float, object] = (time.monotonic(), None)
        self.began_s = time.monotonic()
        self.took_s = 0.0

    # --- the run ----------------------------------------------------------------------------------

    def run(self) -> None:
        """Everything; raises `Violation`."""
        try:
            with played(self.cluster) as watched:
                self.watcher = watched.watcher
                self._disturb(watched)
                self._settle(watched)
        except Violation as seen:
            self._look_for_the_cause(seen)
            raise
        finally:
            self.took_s = time.monotonic() - self.began_s
        self._judge()

    def _disturb(self, watched: WatchedCluster) -> None:
        for strike in strikes(self.plan.seed):
            if self.tally["kills"] >= self.plan.kills:
                return
            until_s = time.monotonic() + strike.after_s
            while True:
                self._look(watched, again=True)
                left_s = until_s - time.monotonic()
                if left_s <= 0:
                    break
                time.sleep(min(left_s, 0.2))  # pause: until the fault is due
            struck = self.cluster.strike(strike)
            if not struck:
                continue
            kind = f"{'kill' if strike.kill else 'pause'} {strike.kind}"
            self.tally[kind] += 1
            if strike.kill:
                self.tally["kills"] += 1
                self.tally["processes killed"] += len(struck)
                if self.tally["kills"] % 25 == 0:
                    self.say(f"{self.tally['kills']} kills; {self._progress()}")

    def _settle(self, watched: WatchedCluster) -> None:
        """No more faults: everything comes back, and the jobs come to their end."""
        self.cluster.all_back()
        until_s = time.monotonic() + PATIENCE_S
        while self._open:
            self._look(watched, again=False)
            if time.monotonic() > until_s:
                raise Stuck(f"not at its end {PATIENCE_S:g} s after the last fault")
            time.sleep(0.1)  # pause: between two looks, each of which also checks

    def _look(self, watched: WatchedCluster, *, again: bool) -> None:
        """Take the answers of jobs that have ended, submit the next ones, and see that it moves."""
        watcher = watched.watcher
        if watcher.troubles:
            raise AssertionError("the watcher failed") from watcher.troubles[0]
        for job in list(self._open):
            status = watcher.jobs.get(job.name)
            if status is not None and status.phase in FINAL:
                self._open.remove(job)
                self._take_answer(watched, job, status)
        if again and not self._open:
            self._submit(watched.session)
        now_s = time.monotonic()
        state = (dict(watcher.committed), self._round, len(self._open))
        if state != self._moved[1]:
            self._moved = (now_s, state)
        elif now_s - self._moved[0] > STUCK_S:
            raise Stuck(f"no commit and no end of a job for {STUCK_S:g} s")

    def _submit(self, session: Session) -> None:
        self._round += 1
        plan = self.plan
        large = Counting(f"large-{self._round}", 8, (2, 5), plan.steps, plan.step_ms, plan.seed)
        small = Counting(f"small-{self._round}", 3, (1, 2), plan.steps // 2, plan.step_ms, 7)
        twice = plan.sabotage == "a step twice"
        for job in (replace(large, step_twice=twice), small):
            self.jobs[job.name] = job
            self._open.append(job)
            patiently(lambda job=job: _submit_once(session, job))  # type: ignore[misc]

    def _take_answer(self, watched: WatchedCluster, job: Counting, status: Status) -> None:
        """What the job left: its commit records, each read back whole, and the last one's state."""
        for event in patiently(lambda: list(results(watched, job))):
            watched.watcher.note(event)
            self.tally["checkpoints read back"] += isinstance(event, Kept)
        self.tally[f"jobs {status.phase}"] += 1
        self.say(f"{job.name} has {status.phase}: {status.reason}")
        if status.phase != "succeeded":
            raise Violation("5", f"{job.name} has {status.phase}: {status.reason}")

    # --- the judgement ----------------------------------------------------------------------------

    def ground(self) -> Ground:
        return Ground(
            lanes={job.name: job.lanes for job in self.jobs.values()},
            cpu=dict.fromkeys(self.jobs, 1.0),
            capacity=dict(CAPACITIES),
        )

    def history(self) -> list[Event]:
        assert self.watcher is not None
        return [*self.watcher.events, *words_of(self.folder)]

    def _look_for_the_cause(self, seen: Violation) -> None:
        """A job that failed or is stuck may be what follows from something else."""
        for check in checks.EVERY:
            if check is not checks.answers_are_right:
                try:
                    check(self.history(), self.ground())
                except Violation as cause:
                    raise cause from seen

    def _judge(self) -> None:
        history, ground = self.history(), self.ground()
        checks.check(history, ground)
        if self.cluster.unasked:
            raise Violation("nothing ends by itself", "; ".join(self.cluster.unasked[:5]))
        for log in sorted(self.folder.glob("*.log")):
            words = log.read_text(errors="replace")
            if "\nTraceback (most recent call last)" in words:
                raise Violation("no error goes uncaught", f"there is a traceback in {log}")
        for name in breakages.EVERY:
            breakages.seen(name, history, ground)
        self.tally["checks that see their breakage"] = len(breakages.EVERY)

    # --- what people see --------------------------------------------------------------------------

    def _progress(self) -> str:
        assert self.watcher is not None
        here = [f"{job.name} at {self.watcher.committed.get(job.name, 0)}" for job in self._open]
        return f"round {self._round}, committed: {', '.join(here) or 'between two rounds'}"

    def figures(self) -> dict[str, object]:
        assert self.watcher is not None
        events = self.watcher.events

        def count(kind: type[Event]) -> int:
            return sum(isinstance(event, kind) for event in events)

        views = [event for event in events if isinstance(event, View)]
        freed = [event for event in events if isinstance(event, Freed)]
        return {
            **dict(sorted(self.tally.items())),
            "rounds": self._round,
            "terms": count(Term),
            "commits": count(Commit),
            "views": len(views),
            "views from a checkpoint": sum(bool(view.restore_step) for view in views),
            "views not seen in time": self.watcher.gaps,
            "workers ended": len(freed),
            "room freed of a lost machine": sum(one.alive and one.lost for one in freed),
            "states and views told by workers": len(words_of(self.folder)),
            "seconds": round(self.took_s),
        }

    def told(self) -> str:
        """The figures, line by line."""
        if self.watcher is None:
            return ""
        return "\n".join(f"  {what}: {count}" for what, count in self.figures().items())

    def story(self, last: int = 40) -> str:
        """The last events, for people."""
        if self.watcher is None:
            return ""
        return story(self.watcher.events, last)


def _submit_once(session: Session, job: Counting) -> None:
    try:
        ControlPlane(session).submit(job.spec())
    except Conflict:
        return  # an earlier try had been heard
