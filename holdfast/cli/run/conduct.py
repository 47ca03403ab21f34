"""Conducting a run: start what it needs, submit or go on, show it, and end it well."""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Final

from holdfast.cli.run import plan as run_plan
from holdfast.cli.run.ending import Countdown, being_written, countdown_text
from holdfast.cli.run.look import Looking, Seen
from holdfast.cli.run.output import Output
from holdfast.cli.run.picture import Pace, Picture, picture_of, step_of
from holdfast.cli.run.plan import Act, Choice
from holdfast.cli.run.results import Results, drafts_of, given_folder, results_of
from holdfast.cli.run.stage import Stage
from holdfast.cli.run.story import Event, Settling, told
from holdfast.cli.run.summary import Summary, next_after
from holdfast.cli.run.voices import Json, Plain, Screen
from holdfast.client import scripts
from holdfast.client.papers import papers_of
from holdfast.client.scripts import Wanted
from holdfast.control.decide.facts import Intent, Job, Phase
from holdfast.control.rpc.observing import Observation
from holdfast.control.rpc.watching import Watching
from holdfast.control.store.plane import ControlPlane
from holdfast.coordination import Session
from holdfast.storage import bundles
from holdfast.wire import logs
from holdfast.wire.errors import HoldfastError, TimedOut
from holdfast.wire.limits import OBSERVE_SILENCE_S, RUN_SETTLE_S
from holdfast.wire.tasks import start_thread

# An old job of the same name that is to end before a new one begins: its agent comes up first.
RUN_REPLACE_S: Final = 60.0
# How often a run looks whether there is anything to show, when nothing wakes it.
RUN_TICK_S: Final = 0.1

Voice = Screen | Plain | Json
EXIT_INTERRUPTED: Final = 130
log = logs.get(__name__)


@dataclass
class Interrupts:
    """Ctrl-C, SIGTERM and SIGHUP: the first one asks, the second one insists. They do not ring the
    bell: whoever waits at it looks at the count at least every `RUN_TICK_S`."""

    bell: threading.Event = field(default_factory=threading.Event)
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
        # Not the bell: it has a lock, and the main thread may be interrupted while it holds it.
        self.count += 1
        self.signal = number

    @property
    def exit_code(self) -> int:
        return 128 + self.signal


class Conductor:
    """One run, from its first process to its last word."""

    def __init__(self, wanted: Wanted, voice: Voice, began_s: float) -> None:
        self._wanted = wanted
        self._voice = voice
        self._interrupts = Interrupts()
        self._pace = Pace()
        self._settling = Settling()
        self._losses: Counter[str] = Counter()
        self._began_s = began_s
        self._countdown: Countdown | None = None
        self._measured: Picture | None = None  # the last one with metrics

    def run(self, stage: Stage) -> int:
        """Conduct it on this stage; the exit code."""
        with self._interrupts.taken(), ExitStack() as stack:
            stack.callback(self._voice.close)
            bundle = bundles.push(stage.cluster.blobs(), self._wanted.script.parent)
            session = stack.enter_context(stage.cluster.session())
            plane = ControlPlane(session)
            job = self._submitted(plane, stage, bundle.digest)
            looking = stack.enter_context(
                Looking(plane, job, plane.history(job.name), self._interrupts.bell.set)
            )
            watching = stack.enter_context(
                Watching(
                    session,
                    partial(papers_of, stage.cluster),
                    job.name,
                    self._interrupts.bell.set,
                )
            )
            output = Output(stage.logs, job.name, stage.log_ends.get(job.name, {}))
            places = self._places(stage, job)
            scene = _Scene(stage, session, plane, looking, watching, output, places)
            return self._follow(scene)

    def _places(self, stage: Stage, job: Job) -> dict[str, str]:
        """Where the unpacked code lies, and what its user calls that place."""
        digest = job.spec.bundle.partition(":")[2]
        unpacked = stage.cluster.bundles_folder / digest / bundles.FILES
        return {str(unpacked): str(self._wanted.script.parent)}

    # --- submitting -----------------------------------------------------------------------------

    def _submitted(self, plane: ControlPlane, stage: Stage, bundle: str) -> Job:
        """The job, new or found again; it is to run, and no other one is."""
        wanted = self._wanted
        known = plane.jobs()
        choice = run_plan.decide(known.pop(wanted.name, None), wanted, bundle)
        for sentence in choice.said:
            self._voice.note(sentence)
        for other in run_plan.in_the_way(known):
            self._voice.note(f"job {other} stays where it is until its own command is run again")
            plane.set_intent(other, Intent.PAUSE)
        if choice.act is Act.ANEW:
            self._remove(plane, stage)
        if choice.act is Act.GO_ON:
            self._go_on(plane, choice)
        else:
            plane.submit(scripts.spec_of(wanted, bundle, choice.lanes))
        job = plane.job(wanted.name)
        plane.scale(wanted.name, min(wanted.workers, job.spec.workers_max))
        return plane.job(wanted.name)

    def _go_on(self, plane: ControlPlane, choice: Choice) -> None:
        name = self._wanted.name
        for setting, value in choice.changed.items():
            plane.change_setting(name, setting, value)
        plane.set_intent(name, Intent.RUN)

    def _remove(self, plane: ControlPlane, stage: Stage) -> None:
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
            stage.mind()
            self._interrupts.bell.wait(RUN_TICK_S)
            if self._interrupts.count:
                raise KeyboardInterrupt
        plane.remove(name)

    # --- following ------------------------------------------------------------------------------

    def _follow(self, scene: _Scene) -> int:
        """Show it until it has ended, or until we are told to stop."""
        told_of = 0
        while True:
            self._interrupts.bell.wait(RUN_TICK_S)
            self._interrupts.bell.clear()
            self._voice.events(
                [Event(time.time(), "Process", text, loss=True) for text in scene.stage.mind()]
            )
            seen = scene.looking.seen()
            picture = self._show(scene, seen)
            phase = seen.job.status.phase
            waits = self._interrupts.count or seen.job.waits_for_recovery
            if phase.final or (phase is Phase.PAUSED and waits):
                return self._ended(scene, seen.job, picture)
            if self._interrupts.count > told_of:
                told_of = self._interrupts.count
                if told_of > 1:
                    return self._abandoned(scene, seen.job, picture)
                self._ask_to_pause(scene)
            if self._countdown is not None and self._is_over(scene, seen.job, self._countdown):
                self._voice.note("the script has not stopped in time: it is ended")
                return self._abandoned(scene, seen.job, picture)

    def _show(self, scene: _Scene, seen: Seen) -> Picture:
        events = [
            _once(event, scene.output)
            for entry in scene.looking.entries()
            if (event := told(entry, scene.places)) is not None
        ]
        self._count(events)
        now_s = time.monotonic()
        self._voice.lines(scene.output.more())
        self._voice.events(self._settling.passed(events, now_s))
        observation = _observation(scene.watching)
        if observation is not None and observation.nodes:
            self._pace.saw(now_s, step_of(seen.job, observation))
        picture = picture_of(
            seen.job,
            observation,
            self._pace,
            wall_s=time.time(),
            now_s=now_s,
            trouble=_trouble(seen, scene.watching, now_s),
        )
        self._voice.picture(picture)
        last = self._measured.metrics_step if self._measured else 0
        if picture.metrics and picture.metrics_step >= last:
            self._measured = picture
        return picture

    def _count(self, events: list[Event]) -> None:
        self._losses["lost worker"] += sum(1 for event in events if event.loss)

    def _ask_to_pause(self, scene: _Scene) -> None:
        """Ask for a checkpoint and an end, on a thread: the plane may be away for a moment."""
        self._countdown = Countdown(time.monotonic())
        pause = partial(_pause, scene.plane, self._wanted.name)
        start_thread(pause, "pausing", lasts="who asks a second time does not wait for the plane")

    def _is_over(self, scene: _Scene, job: Job, countdown: Countdown) -> bool:
        """Whether the script has had its time to stop; says how much is left."""
        drafts = scene.drafts
        writing = job.attempt is not None and drafts is not None and being_written(drafts)
        left_s = countdown.left_s(time.monotonic(), writing=writing)
        if left_s > 0:
            self._voice.hint(countdown_text(left_s, writing=writing))
        return left_s <= 0

    # --- ending ---------------------------------------------------------------------------------

    def _ended(self, scene: _Scene, job: Job, picture: Picture) -> int:
        self._voice.lines(scene.output.more(last=True))
        phase = job.status.phase
        again, results = "", Results()
        if phase is Phase.SUCCEEDED:
            code = 0
            self._await_numbers(scene, job)
            results = results_of(scene.stage.cluster, scene.session, job)
            again = next_after(results.model, given_folder(scene.stage.cluster))
        elif phase is Phase.PAUSED:
            code = 1 if job.is_stranded else self._interrupts.exit_code
            again = _again(job)
        else:
            code = 1
        summary = self._summary(scene, job, picture, code, again)
        self._voice.ended(replace(summary, published=results.published))
        return code

    def _await_numbers(self, scene: _Scene, job: Job) -> None:
        """The numbers of the last step may still be on their way."""
        until_s = time.monotonic() + RUN_SETTLE_S
        while self._measured is not None and self._measured.metrics_step < job.committed_step:
            if time.monotonic() > until_s:
                return  # then it is said of which step they are
            time.sleep(RUN_TICK_S)
            self._show(scene, Seen(job))

    def _abandoned(self, scene: _Scene, job: Job, picture: Picture) -> int:
        """Told twice: end at once. What was committed stays."""
        scene.stage.kill()
        self._voice.lines(scene.output.more(last=True))
        code = self._interrupts.exit_code
        self._voice.ended(self._summary(scene, job, picture, code, _again(job)))
        return code

    def _summary(self, scene: _Scene, job: Job, picture: Picture, code: int, again: str) -> Summary:
        last = job.checkpoints[-1] if job.checkpoints else None
        survived = {what: count for what, count in self._losses.items() if count}
        for what, count in Counter(scene.stage.died).items():
            survived[f"killed {what}"] = count
        cluster = scene.stage.cluster
        step = job.committed_step if job.status.phase is Phase.SUCCEEDED else picture.step
        seconds = time.time() - self._began_s
        made = max(self._pace.steps, 0)  # what could not be read is behind where it was
        return Summary(
            job.name,
            job.status.phase,
            job.status.reason,
            max(step, picture.step if job.status.phase is Phase.SUCCEEDED else 0),
            made,
            seconds,
            made / self._pace.seconds if self._pace.seconds > 1 else None,
            self._pace.goodput(),
            survived,
            f"{cluster.store}/{last.manifest}" if last else "",
            last.step if last else None,
            str(scene.stage.logs),
            again,
            code,
            self._measured.metrics if self._measured else {},
            self._measured.metrics_step if self._measured else 0,
        )


@dataclass(frozen=True)
class _Scene:
    """All that a run looks at."""

    stage: Stage
    session: Session
    plane: ControlPlane
    looking: Looking
    watching: Watching
    output: Output
    places: dict[str, str]

    @property
    def drafts(self) -> Path | None:
        return drafts_of(self.stage.cluster)


def _pause(plane: ControlPlane, name: str) -> None:
    try:
        plane.set_intent(name, Intent.PAUSE)
    except HoldfastError as error:
        # It has ended meanwhile, or the plane is away: the second Ctrl-C is there for that.
        log.warning("the job could not be paused", reason=str(error))


def _once(event: Event, output: Output) -> Event:
    """A worker's traceback is shown with its end or among its lines, not in both places."""
    if event.worker is None or not event.detail:
        return event
    if output.has_shown(event.worker, event.detail):
        return replace(event, detail="")
    output.ended([event.worker])
    return event


def _observation(watching: Watching) -> Observation | None:
    return watching.latest.observation if watching.latest is not None else None


def _trouble(seen: Seen, watching: Watching, now_s: float) -> str:
    """Why what is shown may be old."""
    if seen.trouble is not None:
        return f"the coordination plane does not answer: {seen.trouble.what}"
    latest = watching.latest
    if latest is not None and now_s > latest.at_s + 3 * OBSERVE_SILENCE_S:
        return f"no coordinator answers since {now_s - latest.at_s:.0f} s; workers go on"
    return ""


def _again(job: Job) -> str:
    if job.is_stranded:
        return "run the same command again to try them again; with --fresh it begins at step 0"
    where = f"step {job.committed_step:,}" if job.checkpoints else "the beginning"
    return f"run the same command again to go on from {where}"
