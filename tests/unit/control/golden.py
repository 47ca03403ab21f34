"""Golden transcripts: what happens, and below it what is decided; read, replayed and diffed.

A line at the margin is an event (`job`, `node`, `tick`, `kill` ...; see `_EVENTS`). The indented
lines below it are what came of it. `python -m tests.unit.control.golden` writes the indented lines
of all files again; look at the difference before you keep it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from holdfast.control.decide.commands import (
    Command,
    Decision,
    GiveView,
    Order,
    PlaceWorker,
    SetStatus,
    TakeShare,
    WriteView,
)
from holdfast.control.decide.facts import CheckpointRecovery, ExitKind, Intent, Phase, Setting, View
from holdfast.control.decide.spec import CheckpointPolicy, JobSpec, Resources, RestartPolicy
from tests.unit.control.world import Machine, Worker, World, submitted

FOLDER = Path(__file__).parents[2] / "golden" / "reconcile"
TICKS_MAX = 100


class Replay:
    """One transcript: the world it tells of, and what it says."""

    def __init__(self) -> None:
        self.world = World({}, {})
        self.said: list[str] = []

    def run(self, line: str) -> None:
        """One event, and what comes of it."""
        self.said.append(line)
        word, *rest = line.split()
        _EVENTS[word](self, *rest)

    def add_job(self, name: str, *options: str) -> None:
        given = dict(option.split("=") for option in options)
        low, _, high = given.get("workers", "1").partition("..")
        steps = given.get("every")
        spec = JobSpec(
            name,
            ("train",),
            lanes=int(given.get("lanes", "8")),
            settings={"lr": given["lr"]} if "lr" in given else {},
            workers_min=int(low),
            workers_max=int(high or low),
            priority=int(given.get("priority", "0")),
            checkpoint=CheckpointPolicy(int(steps) if steps else None, None, 2),
            restart=RestartPolicy(failures_max=int(given.get("failures", "3"))),
            deadline_s=float(given["deadline"]) if "deadline" in given else None,
        )
        jobs = {**self.world.desired.jobs, name: submitted(spec, self.world.now_s)}
        self.world.desired = replace(self.world.desired, jobs=jobs)

    def add_node(self, name: str, cpu: str) -> None:
        self.world.machines[name] = Machine(Resources(cpu=float(cpu)))

    def tick(self, delay_s: str = "0.5") -> list[Decision]:
        decisions = self.world.tick(float(delay_s))
        for decision in decisions:
            self.said.append(f"  {shown(decision)}")
        return decisions

    def until(self, job: str, phase: str) -> None:
        """Ticks until the job is in that phase; between two of them a line of its own."""
        for count in range(TICKS_MAX):
            if self.world.desired.jobs[job].status.phase is Phase(phase):
                return
            if count and self.said[-1] != "  --":
                self.said.append("  --")
            self.tick()
        raise AssertionError(f"{job} is not {phase} after {TICKS_MAX} ticks")

    def quiet(self) -> None:
        """Ticks until nothing is decided."""
        for count in range(TICKS_MAX):
            if count:
                self.said.append("  --")
            if not self.tick():
                self.said.append("  nothing")
                return
        raise AssertionError(f"still not quiet after {TICKS_MAX} ticks")

    def end(self, kind: ExitKind, job: str, worker: str, *detail: str) -> None:
        self._worker(job, int(worker)).end(kind, " ".join(detail))

    def there(self, there: bool, node: str) -> None:
        self.world.machines[node].there = there

    def drain(self, node: str) -> None:
        nodes = self.world.desired.draining_nodes | {node}
        self.world.desired = replace(self.world.desired, draining_nodes=nodes)

    def corrupt(self, job: str) -> None:
        newest = self.world.desired.jobs[job].committed_step
        self.world.corrupt.add((job, newest))

    def set(self, job: str, setting: str, at_step: str = "0") -> None:
        name, _, value = setting.partition("=")
        known = self.world.desired.jobs[job].settings
        self.world.change(job, settings=(*known, Setting(name, value, int(at_step))))

    def cut(self, job: str, worker: str, *peers: str) -> None:
        """`worker` cannot reach these, for good; nobody makes a step in a view with both."""
        self.world.cut |= {(job, int(worker), int(peer)) for peer in peers}

    def _worker(self, job: str, number: int) -> Worker:
        return self.world.alive(job)[number]


def shown(decision: Decision) -> str:
    """A decision as a line; a reason of many lines is shown by its first and last."""
    command = decision.command
    lines = decision.reason.splitlines()
    reason = lines[0] if len(lines) == 1 else f"{lines[0]} ... {lines[-1]}"
    return f"{'->' if isinstance(command, Order) else '==':2} {_subject(command)}: {reason}"


def _subject(command: Command) -> str:
    name = type(command).__name__
    match command:
        case SetStatus(job=job, status=status):
            return f"{name} {job} {status.phase.value}"
        case PlaceWorker(job=job, placement=placement):
            return f"{name} {job}.{placement.worker} on {placement.node}"
        case WriteView(job=job, view=view):
            return f"{name} {job} {_lanes(view)}"
        case TakeShare(job=job, worker=worker) | GiveView(job=job, worker=worker):
            return f"{name} {job}.{worker}"
        case _:
            number = getattr(command, "worker", None)
            return f"{name} {command.job}" + (f".{number}" if number is not None else "")


def _lanes(view: View) -> str:
    parts = [f"{worker}={','.join(map(str, lanes))}" for worker, lanes in view.lanes.items()]
    return " ".join(parts)


def _steps(replay: Replay, steps: str) -> None:
    replay.world.steps = int(steps)


def _plain(replay: Replay) -> None:
    replay.world.plain = True


def _asks(**changes: object) -> Callable[..., None]:
    return lambda replay, job: replay.world.change(job, **changes)


_EVENTS: dict[str, Callable[..., object]] = {
    "steps": _steps,
    "plain": _plain,
    "set": Replay.set,
    "cut": Replay.cut,
    "job": Replay.add_job,
    "node": Replay.add_node,
    "tick": Replay.tick,
    "until": Replay.until,
    "quiet": Replay.quiet,
    "kill": lambda replay, *rest: replay.end(ExitKind.SIGNAL, *rest),
    "fail": lambda replay, *rest: replay.end(ExitKind.ERROR, *rest),
    "away": lambda replay, node: replay.there(False, node),
    "back": lambda replay, node: replay.there(True, node),
    "drain": Replay.drain,
    "corrupt": Replay.corrupt,
    "pause": _asks(intent=Intent.PAUSE),
    "resume": _asks(intent=Intent.RUN),
    "resume-again": _asks(recovery=CheckpointRecovery.AGAIN),
    "resume-from-scratch": _asks(recovery=CheckpointRecovery.SCRATCH),
    "mend": lambda replay: replay.world.corrupt.clear(),
    "stop": _asks(intent=Intent.STOP),
    "checkpoint": _asks(checkpoint_asked=True),
    "scale": lambda replay, job, count: replay.world.change(job, workers_wanted=int(count)),
}


def replayed(text: str) -> str:
    """The transcript with what is decided today."""
    replay = Replay()
    for line in text.splitlines():
        if not line or line.startswith("#"):
            replay.said.append(line)
        elif not line.startswith("  "):
            replay.run(line)
    return "\n".join(replay.said) + "\n"


def main() -> None:
    for path in sorted(FOLDER.glob("*.txt")):
        path.write_text(replayed(path.read_text()))


if __name__ == "__main__":
    main()
