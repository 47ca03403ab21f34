"""Running a script: start what it needs, submit or go on, show it, and end it well."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Final, Self

from holdfast.cli.run import plan as run_plan
from holdfast.cli.run.display import Display
from holdfast.cli.run.events import HistoryReader, RunEvent, StatusFilter, event_of
from holdfast.cli.run.plan import Act, RunDecision
from holdfast.cli.run.processes import RunProcesses
from holdfast.cli.run.progress import RunProgress, StepRate, progress_of, step_of
from holdfast.cli.run.summary import (
    RunResults,
    Summary,
    drafts_of,
    given_folder,
    next_after,
    results_of,
)
from holdfast.cli.run.worker_output import WorkerOutput
from holdfast.client import scripts
from holdfast.client.credentials import credentials_of
from holdfast.client.scripts import ScriptRun
from holdfast.control.decide.facts import Intent, JobRecord, Phase
from holdfast.control.rpc.observer import LeaderObserver
from holdfast.control.rpc.observing import Observation
from holdfast.control.store.plane import ControlPlane
from holdfast.coordination import Session
from holdfast.storage import bundles
from holdfast.system import logs
from holdfast.system.tasks import start_thread
from holdfast.wire.errors import HoldfastError, TimedOut
from holdfast.wire.history import HistoryEntry
from holdfast.wire.limits import OBSERVE_SILENCE_S, RUN_SETTLE_S, THREAD_END_S

# An old job of the same name that is to end before a new one begins: its agent comes up first.
RUN_REPLACE_S: Final = 60.0
# How often a run looks whether there is anything to show, when nothing wakes it.
RUN_TICK_S: Final = 0.1

log = logs.get(__name__)
# After the first Ctrl-C a script has so long to reach a step and save it. What then lives is
# killed, and all is over within 10 s: longer, and people close the terminal.
RUN_INTERRUPT_S: Final = 7.0
# While bytes of a checkpoint come, it gets so much longer each time; all together at most so long,
# as a job of a cluster does.
RUN_WRITING_S: Final = 2.0
RUN_SAVE_S: Final = 300.0
# The job's facts are looked at so often; its steps come by themselves.
RUN_LOOK_S: Final = 0.3
# Its history is read again at least so often, also when nothing else has changed.
RUN_HISTORY_S: Final = 2.0
# What a run keeps of its own: samples of progress for the summary, lines that wait to be shown.
RUN_LINES_MAX: Final = 2_000


@dataclass
class Interrupts:
    """Ctrl-C, SIGTERM and SIGHUP: the first one asks, the second one insists. They do not set
    `wakeup`: whoever waits for it looks at the count at least every `RUN_TICK_S`."""

    wakeup: threading.Event = field(default_factory=threading.Event)
    count: int = 0
    signal: int = signal.SIGINT

    @contextmanager
    def taken(self) -> Iterator[None]:
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        before = {number: signal.signal(number, self._came) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _came(self, number: int, _frame: FrameType | None) -> None:
        # Not `wakeup`: it has a lock, and the main thread may be interrupted while it holds it.
        self.count += 1
        self.signal = number

    @property
    def exit_code(self) -> int:
        return 128 + self.signal


class Runner:
    """One run, from its first process to its summary."""

    def __init__(self, wanted: ScriptRun, display: Display, began_s: float) -> None:
        self._wanted = wanted
        self._display = display
        self._interrupts = Interrupts()
        self._pace = StepRate()
        self._settling = StatusFilter()
        self._losses: Counter[str] = Counter()
        self._began_s = began_s
        self._countdown: Countdown | None = None
        self._measured: RunProgress | None = None  # the last one with metrics

    def run(self, processes: RunProcesses) -> int:
        """Run it on these processes; the exit code."""
        with self._interrupts.taken(), ExitStack() as stack:
            stack.callback(self._display.close)
            bundle = bundles.push(processes.cluster.blobs(), self._wanted.script.parent)
            session = stack.enter_context(processes.cluster.session())
            plane = ControlPlane(session)
            job = self._submitted(plane, processes, bundle.digest)
            observer = stack.enter_context(
                JobObserver(plane, job, plane.history(job.name), self._interrupts.wakeup.set)
            )
            watching = stack.enter_context(
                LeaderObserver(
                    session,
                    partial(credentials_of, processes.cluster),
                    job.name,
                    self._interrupts.wakeup.set,
                )
            )
            output = WorkerOutput(processes.logs, job.name, processes.log_ends.get(job.name, {}))
            places = self._places(processes, job)
            context = _RunContext(processes, session, plane, observer, watching, output, places)
            return self._follow(context)

    def _places(self, processes: RunProcesses, job: JobRecord) -> dict[str, str]:
        """Where the unpacked code lies, and what its user calls that place."""
        digest = job.spec.bundle.partition(":")[2]
        unpacked = processes.cluster.bundles_folder / digest / bundles.FILES
        return {str(unpacked): str(self._wanted.script.parent)}

    # --- submitting -----------------------------------------------------------------------------

    def _submitted(self, plane: ControlPlane, processes: RunProcesses, bundle: str) -> JobRecord:
        """The job, new or found again; it is to run, and no other one is."""
        wanted = self._wanted
        known = plane.jobs()
        decision = run_plan.decide(known.pop(wanted.name, None), wanted, bundle)
        for sentence in decision.notes:
            self._display.note(sentence)
        for other in run_plan.in_the_way(known):
            self._display.note(f"job {other} stays where it is until its own command is run again")
            plane.set_intent(other, Intent.PAUSE)
        if decision.act is Act.ANEW:
            self._remove(plane, processes)
        if decision.act is Act.GO_ON:
            self._go_on(plane, decision)
        else:
            plane.submit(scripts.spec_of(wanted, bundle, decision.lanes))
        job = plane.job(wanted.name)
        plane.scale(wanted.name, min(wanted.workers, job.spec.workers_max))
        return plane.job(wanted.name)

    def _go_on(self, plane: ControlPlane, decision: RunDecision) -> None:
        name = self._wanted.name
        for setting, value in decision.changed.items():
            plane.change_setting(name, setting, value)
        plane.set_intent(name, Intent.RUN)

    def _remove(self, plane: ControlPlane, processes: RunProcesses) -> None:
        """Forget the old job. One that has not ended is stopped first."""
        name = self._wanted.name
        deadline_s = time.monotonic() + RUN_REPLACE_S
        while not (job := plane.job(name)).status.phase.final:
            if job.intent is not Intent.STOP:
                plane.set_intent(name, Intent.STOP)
            if time.monotonic() > deadline_s:
                raise TimedOut(
                    f"the old job {name} has not ended within {RUN_REPLACE_S:g} s",
                    why=job.status.reason,
                    fix="run it again, or give the new one another --name",
                )
            processes.restart_dead()
            self._interrupts.wakeup.wait(RUN_TICK_S)
            if self._interrupts.count:
                raise KeyboardInterrupt
        plane.remove(name)

    # --- following ------------------------------------------------------------------------------

    def _follow(self, context: _RunContext) -> int:
        """Show it until it has ended, or until we are told to stop."""
        told_of = 0
        while True:
            self._interrupts.wakeup.wait(RUN_TICK_S)
            self._interrupts.wakeup.clear()
            self._display.events(
                [
                    RunEvent(time.time(), "Process", text, loss=True)
                    for text in context.processes.restart_dead()
                ]
            )
            seen = context.observer.seen()
            progress = self._show(context, seen)
            phase = seen.job.status.phase
            waits = self._interrupts.count or seen.job.waits_for_recovery
            if phase.final or (phase is Phase.PAUSED and waits):
                return self._ended(context, seen.job, progress)
            if self._interrupts.count > told_of:
                told_of = self._interrupts.count
                if told_of > 1:
                    return self._abandoned(context, seen.job, progress)
                self._ask_to_pause(context)
            if self._countdown is not None and self._is_over(context, seen.job, self._countdown):
                self._display.note("the script has not stopped in time: it is ended")
                return self._abandoned(context, seen.job, progress)

    def _show(self, context: _RunContext, seen: JobReading) -> RunProgress:
        events = [
            _once(event, context.output)
            for entry in context.observer.entries()
            if (event := event_of(entry, context.places)) is not None
        ]
        self._count(events)
        now_s = time.monotonic()
        self._display.lines(context.output.more())
        self._display.events(self._settling.passed(events, now_s))
        observation = _observation(context.watching)
        if observation is not None and observation.nodes:
            self._pace.saw(now_s, step_of(seen.job, observation))
        progress = progress_of(
            seen.job,
            observation,
            self._pace,
            wall_s=time.time(),
            now_s=now_s,
            trouble=_trouble(seen, context.watching, now_s),
        )
        self._display.show_progress(progress)
        last = self._measured.metrics_step if self._measured else 0
        if progress.metrics and progress.metrics_step >= last:
            self._measured = progress
        return progress

    def _count(self, events: list[RunEvent]) -> None:
        self._losses["lost worker"] += sum(1 for event in events if event.loss)

    def _ask_to_pause(self, context: _RunContext) -> None:
        """Ask for a checkpoint and an end, on a thread: the plane may be away for a moment."""
        self._countdown = Countdown(time.monotonic())
        pause = partial(_pause, context.plane, self._wanted.name)
        start_thread(pause, "pausing", lasts="who asks a second time does not wait for the plane")

    def _is_over(self, context: _RunContext, job: JobRecord, countdown: Countdown) -> bool:
        """Whether the script has had its time to stop; says how much is left."""
        drafts = context.drafts
        writing = job.attempt is not None and drafts is not None and being_written(drafts)
        left_s = countdown.left_s(time.monotonic(), writing=writing)
        if left_s > 0:
            self._display.hint(countdown_text(left_s, writing=writing))
        return left_s <= 0

    # --- ending ---------------------------------------------------------------------------------

    def _ended(self, context: _RunContext, job: JobRecord, progress: RunProgress) -> int:
        self._display.lines(context.output.more(last=True))
        phase = job.status.phase
        again, results = "", RunResults()
        if phase is Phase.SUCCEEDED:
            code = 0
            self._await_numbers(context, job)
            results = results_of(context.processes.cluster, context.session, job)
            again = next_after(results.model, given_folder(context.processes.cluster))
        elif phase is Phase.PAUSED:
            code = 1 if job.is_stranded else self._interrupts.exit_code
            again = _again(job)
        else:
            code = 1
        summary = self._summary(context, job, progress, code, again)
        self._display.ended(replace(summary, published=results.published))
        return code

    def _await_numbers(self, context: _RunContext, job: JobRecord) -> None:
        """The numbers of the last step may still be on their way."""
        until_s = time.monotonic() + RUN_SETTLE_S
        while self._measured is not None and self._measured.metrics_step < job.committed_step:
            if time.monotonic() > until_s:
                return  # then it is said of which step they are
            time.sleep(RUN_TICK_S)
            self._show(context, JobReading(job))

    def _abandoned(self, context: _RunContext, job: JobRecord, progress: RunProgress) -> int:
        """Told twice: end at once. What was committed stays."""
        context.processes.kill()
        self._display.lines(context.output.more(last=True))
        code = self._interrupts.exit_code
        self._display.ended(self._summary(context, job, progress, code, _again(job)))
        return code

    def _summary(
        self, context: _RunContext, job: JobRecord, progress: RunProgress, code: int, again: str
    ) -> Summary:
        last = job.checkpoints[-1] if job.checkpoints else None
        survived = {what: count for what, count in self._losses.items() if count}
        for what, count in Counter(context.processes.died).items():
            survived[f"killed {what}"] = count
        cluster = context.processes.cluster
        step = job.committed_step if job.status.phase is Phase.SUCCEEDED else progress.step
        seconds = time.time() - self._began_s
        made = max(self._pace.steps, 0)  # what could not be read is behind where it was
        return Summary(
            job.name,
            job.status.phase,
            job.status.reason,
            max(step, progress.step if job.status.phase is Phase.SUCCEEDED else 0),
            made,
            seconds,
            made / self._pace.seconds if self._pace.seconds > 1 else None,
            self._pace.goodput(),
            survived,
            f"{cluster.store}/{last.manifest}" if last else "",
            last.step if last else None,
            str(context.processes.logs),
            again,
            code,
            self._measured.metrics if self._measured else {},
            self._measured.metrics_step if self._measured else 0,
        )


@dataclass(frozen=True)
class _RunContext:
    """All that a run looks at."""

    processes: RunProcesses
    session: Session
    plane: ControlPlane
    observer: JobObserver
    watching: LeaderObserver
    output: WorkerOutput
    places: dict[str, str]

    @property
    def drafts(self) -> Path | None:
        return drafts_of(self.processes.cluster)


def _pause(plane: ControlPlane, name: str) -> None:
    try:
        plane.set_intent(name, Intent.PAUSE)
    except HoldfastError as error:
        # It has ended meanwhile, or the plane is away: the second Ctrl-C is there for that.
        log.warning("the job could not be paused", reason=str(error))


def _once(event: RunEvent, output: WorkerOutput) -> RunEvent:
    """A worker's traceback is shown with its end or among its lines, not in both places."""
    if event.worker is None or not event.detail:
        return event
    if output.has_shown(event.worker, event.detail):
        return replace(event, detail="")
    output.ended([event.worker])
    return event


def _observation(watching: LeaderObserver) -> Observation | None:
    return watching.latest.observation if watching.latest is not None else None


def _trouble(seen: JobReading, watching: LeaderObserver, now_s: float) -> str:
    """Why what is shown may be old."""
    if seen.trouble is not None:
        return f"the coordination plane does not answer: {seen.trouble.what}"
    latest = watching.latest
    if latest is not None and now_s > latest.at_s + 3 * OBSERVE_SILENCE_S:
        return f"no coordinator answers since {now_s - latest.at_s:.0f} s; workers go on"
    return ""


def _again(job: JobRecord) -> str:
    if job.is_stranded:
        return "run the same command again to try them again; with --fresh it begins at step 0"
    where = f"step {job.committed_step:,}" if job.checkpoints else "the beginning"
    return f"run the same command again to go on from {where}"


@dataclass
class Countdown:
    """The time that is left since the first Ctrl-C, on the monotonic clock."""

    asked_s: float
    writing: bool = False
    _until_s: float = 0.0

    def left_s(self, now_s: float, *, writing: bool) -> float:
        """How long it still has. `writing`: bytes of a checkpoint have come a moment ago."""
        self.writing = writing
        self._until_s = max(self._until_s, self.asked_s + RUN_INTERRUPT_S)
        if writing:
            self._until_s = max(self._until_s, now_s + RUN_WRITING_S)
        return min(self._until_s, self.asked_s + RUN_SAVE_S) - now_s


def countdown_text(left_s: float, *, writing: bool) -> str:
    """What stands on the screen meanwhile."""
    if writing:
        return "writing a checkpoint, then stopping; Ctrl-C again ends at once"
    seconds = max(1, math.ceil(left_s))
    return f"saving, then stopping: ending in {seconds} s; Ctrl-C again ends at once"


def being_written(folder: Path) -> bool:
    """Whether anything in this folder has changed a moment ago."""
    now_s = time.time()
    try:
        return any(now_s - each.stat().st_mtime < RUN_WRITING_S for each in folder.iterdir())
    except OSError:
        return False  # there is no such folder, or a file of it has just got its name


@dataclass(frozen=True, slots=True)
class JobReading:
    """The job as it was last read. `trouble`: why it could not be read since; None: it could."""

    job: JobRecord
    trouble: HoldfastError | None = None


class JobObserver:
    """Reads a job and what is new in its history, again and again, on a thread of its own."""

    def __init__(
        self,
        plane: ControlPlane,
        job: JobRecord,
        known: list[HistoryEntry],
        news: Callable[[], None],
    ) -> None:
        self._plane = plane
        self._news = news
        self._story = HistoryReader(known)
        self._lock = threading.Lock()
        self._seen = JobReading(job)
        self._entries: list[HistoryEntry] = []
        self._read_s = 0.0
        self._stop = threading.Event()
        self._thread = start_thread(self._run, "holdfast-observer")

    def seen(self) -> JobReading:
        with self._lock:
            return self._seen

    def entries(self) -> list[HistoryEntry]:
        """What was decided since the last call."""
        with self._lock:
            taken, self._entries = self._entries, []
        return taken

    def close(self) -> None:
        self._stop.set()
        self._thread.join(THREAD_END_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _run(self) -> None:
        while not self._stop.wait(RUN_LOOK_S):
            before = self.seen()
            try:
                job = self._plane.job(before.job.name)
                due = time.monotonic() >= self._read_s + RUN_HISTORY_S
                history = self._plane.history(job.name) if due or job != before.job else None
            except HoldfastError as error:
                if not self._stop.is_set():
                    self._publish(JobReading(before.job, error), [])
                continue
            if history is not None:
                self._read_s = time.monotonic()
            entries = self._story.news(history or [])
            if entries or job != before.job or before.trouble is not None:
                self._publish(JobReading(job), entries)

    def _publish(self, seen: JobReading, entries: list[HistoryEntry]) -> None:
        with self._lock:
            self._seen = seen
            self._entries = [*self._entries, *entries][-RUN_LINES_MAX:]
        self._news()
