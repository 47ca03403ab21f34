"""Following a job from a command: news on stderr, the end as an exit code."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from rich.text import Text

from holdfast.cli import absence, listing, output, times
from holdfast.cli.jobs import document, step_of, workers_in
from holdfast.wire.errors import TimedOut

if TYPE_CHECKING:
    from holdfast.cli.opening import Opened
    from holdfast.control.facts import Job

# How often a command that waits looks: as soon as a person would notice.
LOOK_S: Final = 0.3
# Steps are asked of the leader more rarely than phases of the coordination plane.
_STEPS_S: Final = 1.0


def until_end(found: Opened, name: str, *, as_json: bool = False) -> int:
    """Follow the job until it has ended; 0 if it succeeded, 1 if not."""
    shown: tuple[str, str] | None = None
    asked_s = 0.0
    waiting = absence.Waiting(found, absence.COORDINATOR, quiet=as_json)
    try:
        while True:
            job = found.plane.job(name)
            status = job.status
            if not as_json and (status.phase.value, status.reason) != shown:
                shown = (status.phase.value, status.reason)
                _say_phase(job)
            if status.phase.final:
                break
            if sys.stderr.isatty() and time.monotonic() >= asked_s + _STEPS_S:
                asked_s = time.monotonic()
                _say_step(found, job)
            waiting.look(f"{name} is {status.phase.value}")
            time.sleep(LOOK_S)
    except KeyboardInterrupt:
        listing.note(
            f"\n{name} goes on. See it: holdfast jobs {name}   end it: holdfast stop {name}"
        )
        raise
    if as_json:
        output.show_json(document(job, {}))
    return 0 if status.phase.value == "succeeded" else 1


def until(
    found: Opened, name: str, ready: Callable[[Job], bool], what: str, timeout_s: float
) -> Job:
    """Wait until the job is as wanted. `TimedOut` says what it is instead."""
    deadline_s = time.monotonic() + timeout_s
    waiting = absence.Waiting(found, absence.COORDINATOR)
    while True:
        job = found.plane.job(name)
        if ready(job):
            return job
        if time.monotonic() >= deadline_s:
            raise TimedOut(
                f"{what}: not within {times.span(timeout_s)}",
                why=f"{name} is {job.status.phase.value}: {job.status.reason}",
                fix=f"holdfast why {name}",
            )
        waiting.look(f"{what}; {name} is {job.status.phase.value}: {job.status.reason}")
        time.sleep(LOOK_S)


def _say_phase(job: Job) -> None:
    status = job.status
    line = Text(f"{times.clock(time.time())}  ", style="dim")
    line.append_text(listing.phase(f"{status.phase.value:<9}"))
    line.append(f"  {listing.own_paths(status.reason.strip())}")
    output.err().print(line)


def _say_step(found: Opened, job: Job) -> None:
    """The step, on a terminal, in one line that is written again."""
    seen, _ = found.seen()
    step = step_of(job, workers_in(seen, job.name))
    if step is None:
        return
    saved = f", {job.committed_step:,} is committed" if job.checkpoints else ""
    sys.stderr.write(f"\r\x1b[Kstep {step:,}{saved}\r")
    sys.stderr.flush()
