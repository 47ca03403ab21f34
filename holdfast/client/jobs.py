"""A job of a cluster, as a handle: whoever has its name can wait for it, look at it, change it.

job = client.submit("train.py", workers=2)
for status in job.watch():
    print(status.phase, status.step)
job.result()            # JobFailed, with the cause, if it has not succeeded
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from holdfast.client import job_actions, job_waits
from holdfast.client.absence import Progress
from holdfast.client.job_status import JobStatus, status_of, workers_in
from holdfast.wire.limits import JOB_ACT_WAIT_S, JOB_UPDATE_WAIT_S

if TYPE_CHECKING:
    from holdfast.client.connection import ClusterConnection
    from holdfast.client.job_waits import JobChanges
    from holdfast.client.logs import LogLine, LogStream
    from holdfast.client.opening import Opened
    from holdfast.client.submitting import Submission
    from holdfast.control.decide.facts import JobRecord as JobFacts
    from holdfast.wire.history import HistoryEntry


class Job:
    """A job. `submission`: what was submitted, where it was this client's doing. May be used by any
    thread; `Missing` names the nearest job, if there is none of this name."""

    def __init__(
        self, connection: ClusterConnection, facts: JobFacts, submission: Submission | None = None
    ) -> None:
        self.name = facts.name
        self.submission = submission
        self._connection = connection
        self._handle = (facts.name, facts.submitted_s)

    def __repr__(self) -> str:
        return f"<Job {self.name}>"

    @property
    def found(self) -> Opened:
        """The cluster, for this very job: `Missing`, if another one has its name by now."""
        return replace(self._connection.found, handle=self._handle)

    # --- how it is ------------------------------------------------------------------------------

    def facts(self) -> JobFacts:
        """All that the control plane holds of it."""
        return self.found.job(self.name)

    def status(self) -> JobStatus:
        """How it is now. The step is asked of the leader, which may take a moment."""
        job = self.facts()
        seen = [] if job.status.phase.final else self.found.seen()[0]
        return status_of(job, workers_in(seen, self.name))

    def history(self) -> list[HistoryEntry]:
        """What was asked and decided, each with its reason; oldest first."""
        self.facts()
        return self.found.plane.history(self.name)

    def watch(self, *, steps: bool = True, progress: Progress | None = None) -> Iterator[JobStatus]:
        """Its status now, and each time that it changes, until it has ended. Without `steps` the
        leader is not asked how far it is."""
        changes = self.changes(steps=steps, progress=progress)
        while True:
            if (status := changes.poll()) is not None:
                yield status
            if changes.over:
                return
            time.sleep(changes.every_s)

    def changes(self, *, steps: bool = True, progress: Progress | None = None) -> JobChanges:
        """Its changes, for whoever looks himself; `watch` waits between two looks."""
        return job_waits.JobChanges(self.found, self.name, steps=steps, progress=progress)

    def logs(
        self,
        *,
        follow: bool = False,
        worker: int | None = None,
        lines: int | None = None,
        stdout: bool = True,
        stderr: bool = True,
    ) -> Iterator[LogLine]:
        """What its workers wrote, on any machine, also of those that have ended. `lines`: only the
        last so many of each; `follow`: and what comes, until the job has ended."""
        from holdfast.client import logs

        wanted = {"worker": worker, "lines": lines, "stdout": stdout, "stderr": stderr}
        return logs.here(self.log_stream(**wanted).batches(follow=follow))

    def log_stream(self, **wanted: Any) -> LogStream:
        """For whoever drives it himself; `wanted`: see `client.logs.query_of`."""
        from holdfast.client.logs import LogStream, query_of

        job = self.facts()
        first = self.found.plane.first_worker(self.name)
        return LogStream(self.found, job, query_of(job, **wanted), self._connection.note, first)

    # --- waiting --------------------------------------------------------------------------------

    def wait(
        self, timeout_s: float | None = None, *, progress: Progress | None = None
    ) -> JobStatus:
        """Wait until it has ended, however that may be. `TimedOut`: not within so many seconds, and
        it goes on. `progress` is told again and again what is waited for."""
        found = self.found
        return status_of(job_waits.until_ended(found, self.name, timeout_s, progress).here(), {})

    def result(self, timeout_s: float | None = None) -> JobStatus:
        """Wait until it has succeeded. `JobFailed`: it has not, and why."""
        found = self.found
        return job_waits.ended(job_waits.until_ended(found, self.name, timeout_s).here())

    def future(self) -> Future[JobStatus]:
        """What `result` gives, as a future. Cancelling it leaves the job alone."""
        wait = job_waits.until_ended(self.found, self.name, None)
        return self._connection.futures.add(wait, job_waits.ended)

    def wait_ready(
        self, timeout_s: float | None = JOB_UPDATE_WAIT_S, *, progress: Progress | None = None
    ) -> JobStatus:
        """Of a job that serves: wait until all of its replicas are ready."""
        wait = job_waits.until_ready(self.found, self.name, timeout_s, progress)
        return status_of(wait.here(), {})

    def wait_updated(
        self, timeout_s: float | None = JOB_UPDATE_WAIT_S, *, progress: Progress | None = None
    ) -> JobStatus:
        """After `Client.update`: wait until every replica is of the new revision. `Refused`: the
        update was stopped, and the replicas before it go on."""
        wait = job_waits.until_updated(self.found, self.name, timeout_s, progress)
        return status_of(wait.here(), {})

    # --- changing -------------------------------------------------------------------------------

    def scale(self, workers: int | None) -> None:
        """Have so many workers at most; None: as many as its file allows. Those above it leave at a
        step boundary; none restarts."""
        job_actions.scale(self.found, self.name, workers)

    def set(
        self, settings: Mapping[str, Any] | None = None, *, at_step: int = 0, **more: Any
    ) -> None:
        """Change settings while it runs: every worker takes them at the same step, `at_step` or
        the next possible one."""
        job_actions.change_settings(self.found, self.name, {**(settings or {}), **more}, at_step)

    def checkpoint(
        self,
        *,
        wait: bool = False,
        timeout_s: float = JOB_ACT_WAIT_S,
        progress: Progress | None = None,
    ) -> JobFacts:
        """Ask for a checkpoint as soon as can be; with `wait`, return when it is committed."""
        before = job_actions.ask_checkpoint(self.found, self.name)
        if not wait:
            return before
        return job_waits.until_committed(self.found, before, timeout_s, progress).here()

    def pause(
        self,
        *,
        wait: bool = False,
        timeout_s: float = JOB_ACT_WAIT_S,
        progress: Progress | None = None,
    ) -> JobFacts | None:
        """Save a checkpoint and end its workers, until `resume`. `wait`: the job, once it is."""
        from holdfast.control.decide.facts import Intent

        job_actions.intend(self.found, self.name, Intent.PAUSE)
        return self._phase("paused", timeout_s, progress) if wait else None

    def resume(self, *, from_scratch: bool = False) -> None:
        """Let a paused job go on from its last checkpoint; `from_scratch`: one none of whose
        checkpoints can be read begins at step 0."""
        from holdfast.control.decide.facts import Intent

        if from_scratch:
            job_actions.begin_from_scratch(self.found, self.name)
        else:
            job_actions.intend(self.found, self.name, Intent.RUN)

    def cancel(
        self,
        *,
        now: bool = False,
        wait: bool = False,
        timeout_s: float = JOB_ACT_WAIT_S,
        progress: Progress | None = None,
    ) -> JobFacts | None:
        """End it for good, after a last checkpoint; `now`: without one. With `wait`, the job once
        it is stopped."""
        from holdfast.control.decide.facts import Intent

        job_actions.intend(self.found, self.name, Intent.STOP_NOW if now else Intent.STOP)
        return self._phase("stopped", timeout_s, progress) if wait else None

    def remove(self) -> None:
        """Forget it, once it has ended: its history, its checkpoints. Its name is free again."""
        job_actions.remove(self.found, self.name)

    def _phase(self, phase: str, timeout_s: float, progress: Progress | None) -> JobFacts:
        found = self.found
        return job_waits.until_phase(found, self.name, phase, timeout_s, progress).here()
