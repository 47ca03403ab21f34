"""What is waited for of a job: its end, its readiness, a phase, a checkpoint, an update."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.client import texts
from holdfast.client.absence import COORDINATOR, Progress, WaitReporter
from holdfast.client.job_status import JobStatus, Working, status_of, workers_in
from holdfast.client.waiting import Poll, deadline_of
from holdfast.wire.causes import cause_of
from holdfast.wire.errors import JobFailed, Refused, TimedOut
from holdfast.wire.limits import JOB_LOOK_S

if TYPE_CHECKING:
    from holdfast.client.opening import Opened
    from holdfast.control.decide.facts import JobRecord
from typing import Final

# Steps are asked of the leader more rarely than phases of the coordination plane.
JOB_STEPS_S: Final = 1.0


def until(
    found: Opened,
    name: str,
    ready: Callable[[JobRecord], bool],
    what: str,
    timeout_s: float | None,
    progress: Progress | None = None,
) -> Poll[JobRecord]:
    """The job, once it is as wanted. `TimedOut` says what it is instead."""
    deadline_s = deadline_of(timeout_s)
    waiting = WaitReporter(found, COORDINATOR, progress=progress)

    def check() -> JobRecord | None:
        job = found.job(name)
        if ready(job):
            return job
        if timeout_s is not None and time.monotonic() >= deadline_s:
            raise TimedOut(
                f"{what}: not within {texts.span(timeout_s)}",
                why=f"{name} is {job.status.phase.value}: {job.status.reason}",
                fix=f"holdfast why {name}",
            )
        waiting.report(f"{what}; {name} is {job.status.phase.value}: {job.status.reason}")
        return None

    return Poll(check, JOB_LOOK_S)


def until_ended(
    found: Opened, name: str, timeout_s: float | None, progress: Progress | None = None
) -> Poll[JobRecord]:
    """It has ended, however that may be."""

    def final(job: JobRecord) -> bool:
        return job.status.phase.final

    return until(found, name, final, f"{name} ends", timeout_s, progress)


def ended(job: JobRecord) -> JobStatus:
    """How it has ended; `JobFailed`, with the cause, if it has not succeeded."""
    status = status_of(job, {})
    if status.succeeded:
        return status
    cause = cause_of(status.why)
    how = "was stopped" if status.phase == "stopped" else "has failed"
    raise JobFailed(
        f"job {job.name} {how}",
        why=f"{cause.text}: {cause.why}" if cause.why else cause.text,
        fix=cause.fix or f"holdfast why {job.name}",
        story=status.why.splitlines() if status.phase == "failed" else (),
    )


def until_phase(
    found: Opened, name: str, phase: str, timeout_s: float, progress: Progress | None = None
) -> Poll[JobRecord]:
    """It is in this phase, and has no workers any more. `Refused`: it has ended otherwise."""

    def reached(job: JobRecord) -> bool:
        status = job.status
        if status.phase.final and status.phase.value != phase:
            raise Refused(
                f"{name} has {status.phase.value} meanwhile",
                why=cause_of(status.reason).line,
                fix=f"holdfast why {name}",
            )
        return status.phase.value == phase and not job.placements

    return until(found, name, reached, f"{name} is {phase}", timeout_s, progress)


def until_committed(
    found: Opened, before: JobRecord, timeout_s: float, progress: Progress | None = None
) -> Poll[JobRecord]:
    """The checkpoint that was asked for of `before` is committed."""
    name = before.name

    def committed(job: JobRecord) -> bool:
        if job.status.phase.final and job.committed_step <= before.committed_step:
            raise Refused(
                f"{name} {job.status.phase.value} before it was made",
                why=cause_of(job.status.reason).line,
                fix=f"holdfast why {name}",
            )
        return not job.checkpoint_asked and len(job.checkpoints) > 0

    return until(found, name, committed, "the checkpoint", timeout_s, progress)


def until_ready(
    found: Opened, name: str, timeout_s: float | None, progress: Progress | None = None
) -> Poll[JobRecord]:
    """Of a job that serves: all of its replicas are ready."""

    def ready(job: JobRecord) -> bool:
        if job.status.phase.final:
            raise Refused(
                f"{job.name} has {job.status.phase.value}", fix=f"holdfast why {job.name}"
            )
        return job.status.phase.value == "running"

    return until(found, name, ready, "its replicas are ready", timeout_s, progress)


def until_updated(
    found: Opened, name: str, timeout_s: float | None, progress: Progress | None = None
) -> Poll[JobRecord]:
    """Every replica is of the new revision; `Refused` if the update was stopped."""

    def updated(job: JobRecord) -> bool:
        if job.halted is not None and job.is_halted:
            raise Refused(
                f"the update of {job.name} was stopped; the replicas before it go on",
                why=job.halted.reason,
                fix=f"holdfast logs {job.name} --stderr; then change the file, and update again",
            )
        return not job.is_updating and not any(placement.draining for placement in job.placements)

    return until(found, name, updated, "the update", timeout_s, progress)


class JobChanges:
    """The job's status, each time that it is another one. `over` after the last."""

    every_s = JOB_LOOK_S

    def __init__(
        self, found: Opened, name: str, *, steps: bool = True, progress: Progress | None = None
    ) -> None:
        self.over = False
        self._found = found
        self._name = name
        self._steps = steps
        self._asked_s = float("-inf")
        self._working: Working = {}
        self._last: JobStatus | None = None
        self._waiting = WaitReporter(found, COORDINATOR, progress=progress)

    def poll(self) -> JobStatus | None:
        """The status, if it has changed since the last look."""
        job = self._found.job(self._name)
        if job.status.phase.final:
            self.over, self._working = True, {}
        else:
            self._waiting.report(f"{self._name} is {job.status.phase.value}")
            self._ask(job)
        status = status_of(job, self._working)
        if status == self._last:
            return None
        self._last = status
        return status

    def _ask(self, job: JobRecord) -> None:
        """How far its workers are; what is not told now stays as it was told last."""
        now_s = time.monotonic()
        if not job.placements:
            self._working = {}
        elif self._steps and now_s >= self._asked_s + JOB_STEPS_S:
            self._asked_s = now_s
            seen, trouble = self._found.seen()
            if not trouble:
                self._working = workers_in(seen, self._name)
