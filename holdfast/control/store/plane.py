"""What users do with jobs, queues and machines, as verbs over the coordination plane.

Nothing here is fenced: users are not leaders. Each verb is one compare-and-set or one transaction;
two users at once are put in order, and a lost reply is found out. What is asked of a job is also
kept in words, for its history (`asked`). A user's node is never written
by a leader but to note that the checkpoint asked for was made. The leader's side is `ledger`.
"""

from __future__ import annotations

import heapq
import uuid
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

from holdfast.control.decide import updating
from holdfast.control.decide.facts import (
    CheckpointRecovery,
    DesiredSpec,
    Intent,
    JobRecord,
    Phase,
    QueueQuota,
    RecordedStatus,
    Setting,
)
from holdfast.control.decide.lifecycle import many
from holdfast.control.decide.membership import setting_text
from holdfast.control.decide.spec import JobSpec
from holdfast.control.store import codec, job_nodes, layout
from holdfast.control.store.audit import AuditLog
from holdfast.control.store.codec import JobState
from holdfast.control.store.history import read_history
from holdfast.control.store.retired import Retired
from holdfast.coordination import Config, Facts, Session, stamps
from holdfast.wire.errors import Conflict, Full, Missing, Refused, Usage
from holdfast.wire.history import HistoryEntry
from holdfast.wire.limits import UPDATE_TRIES_MAX
from holdfast.wire.worker_messages import SIZE_SETTINGS

# Settings changed at run time: every worker is told all of them.
SETTINGS_MAX: Final = 1_000
# Machines that are being emptied by their names: half of the largest cluster.
DRAINING_NODES_MAX: Final = 5_000


class ControlPlane:
    """The facts of all jobs, for whoever wants something of them."""

    def __init__(self, session: Session, who: str = "its user") -> None:
        self._session = session
        self._facts = Facts(session)
        self._asked = AuditLog(self._facts, who)
        self._retired = Retired(session)

    # --- jobs -------------------------------------------------------------------------------

    def submit(self, spec: JobSpec, workers: int | None = None) -> JobRecord:
        """A new job, queued, to have so many workers (None: as many as its spec allows).
        One that starts others (`on`) and is there already goes on by this spec. `Conflict` if there
        is another of that name."""
        name = layout.check_name("job", spec.name)
        layout.check_name("queue", spec.queue)
        _check_words(spec)
        if spec.on is not None and self._is_trigger(name):
            return self._update_trigger(spec, workers)
        now_s = self._now_s()
        desired = DesiredSpec(spec, now_s, uuid.uuid4().hex, workers_wanted=workers)
        first, retired = self._retired.first(name)
        state = JobState(
            RecordedStatus(Phase.QUEUED, "it was just submitted", now_s), next_worker=first
        )
        transaction = self._facts.transaction(lambda: self._submission(name) == desired.submission)
        self._retired.check_in(transaction, retired)
        try:
            job_nodes.create_in(transaction, self._session, desired, state)
            said = f"run on {_workers(spec) if workers is None else many(workers)}"
            self._asked.note_in(transaction, name, said, now_s, desired.submission)
            transaction.commit()
        except Conflict as error:
            if self._submission(name) is None and self._retired.moved(retired):
                return self.submit(spec, workers)  # another job was removed at that moment
            raise Conflict(
                f"there is a job {name} already",
                why="a name is free again when its job has ended and was removed",
                fix=f"choose another name, or: holdfast remove {name};"
                " one that serves gets another program by: holdfast update JOB.YAML",
            ) from error
        return codec.job_of(desired, state, view=None, placements=(), checkpoints=(), settings=())

    def first_worker(self, job: str) -> int:
        """The number of its first worker: those below it were of jobs that had its name before."""
        return self._retired.begun(job)

    def update(self, spec: JobSpec) -> JobRecord:
        """Let a job that serves have another spec: its replicas are replaced one after another
        where it matters to them. `Refused`: what cannot be changed."""
        job = spec.name
        _check_words(spec)
        if spec.on is not None and self._is_trigger(job):
            return self._update_trigger(spec, None)
        state = self._open_job(job)
        placed = {placement.revision for placement in self._filed(job).job.placements}
        now_s = self._now_s()

        def change(desired: DesiredSpec) -> DesiredSpec:
            return updating.changed(desired, spec, state.halted, placed, now_s)

        self._change(job, change, "update")
        return self._filed(job).job

    def _is_trigger(self, job: str) -> bool:
        """Whether there is one that starts others, and is not to end."""
        filed = layout.read_job(self._facts, job)
        if filed is None or filed.job.spec.on is None:
            return False
        return not filed.job.intent.stops and not filed.job.status.phase.final

    def _update_trigger(self, spec: JobSpec, workers: int | None) -> JobRecord:
        """It goes on where it is; the next job that it starts is by this spec."""

        def change(desired: DesiredSpec) -> DesiredSpec:
            after = replace(desired, spec=spec, workers_wanted=workers)
            if after == desired:
                return desired
            return replace(after, revision=desired.revision + 1, updated_s=self._now_s())

        self._change(spec.name, change, "start jobs by another file from now on")
        return self._filed(spec.name).job

    def set_intent(self, job: str, intent: Intent) -> None:
        """Run, pause or stop it. A job that is to stop is not let run again."""

        def change(desired: DesiredSpec) -> DesiredSpec:
            if desired.intent.stops and not intent.stops:
                raise Refused(
                    f"job {job} is being stopped", fix="submit it again when it has ended"
                )
            if desired.intent is Intent.STOP_NOW:
                return desired
            again = (
                CheckpointRecovery.AGAIN if stranded and intent is Intent.RUN else desired.recovery
            )
            return replace(desired, intent=intent, recovery=again)

        stranded = intent is Intent.RUN and self._filed(job).job.is_stranded
        self._change(job, change, "resume" if intent is Intent.RUN else intent.value)

    def begin_from_scratch(self, job: str) -> None:
        """Give up the checkpoints of a job that cannot go on from any of them."""
        found = self._filed(job).job
        if not found.is_stranded:
            at = f"step {found.committed_step} is" if found.checkpoints else "none is"
            raise Refused(
                f"job {job} has no unreadable checkpoints to give up",
                why=f"{at} committed, and it goes on from there",
                fix=f"holdfast resume {job}   or anew: holdfast stop {job} --wait, then holdfast"
                f" remove {job}, and submit it again",
            )

        def change(desired: DesiredSpec) -> DesiredSpec:
            return replace(desired, intent=Intent.RUN, recovery=CheckpointRecovery.SCRATCH)

        self._change(job, change, "resume from scratch")

    def scale(self, job: str, workers: int | None) -> None:
        """Have so many workers; None: as many as its spec allows."""

        def change(desired: DesiredSpec) -> DesiredSpec:
            least, most = desired.spec.workers_min, desired.spec.workers_max
            if workers is not None and not least <= workers <= most:
                raise Usage(
                    f"job {job} cannot have {workers} workers",
                    why=f"its spec allows {least} to {most}",
                    fix=f"holdfast scale {job} {min(max(workers, least), most)}",
                )
            return replace(desired, workers_wanted=workers)

        most = "as many workers as its file allows" if workers is None else str(workers)
        self._change(job, change, f"scale to {most}")

    def ask_checkpoint(self, job: str) -> None:
        """A checkpoint as soon as can be. Asked again before it is made, it is the same one."""

        def change(desired: DesiredSpec) -> DesiredSpec:
            if desired.spec.serves:
                raise Refused(
                    f"job {job} has nothing to save", why="its workers serve, and hold no state"
                )
            return replace(desired, checkpoint_asked=True)

        self._change(job, change, "checkpoint")

    def change_setting(self, job: str, name: str, value: str, at_step: int | None = None) -> None:
        """Every worker takes the value at that step; None, or too late for it: at the first step
        for which all know it. Said again, it changes nothing."""
        at_step = at_step or 0
        self._open_job(job)
        if not name or at_step < 0:
            raise Usage("a setting has a name, and a step from 0", fix="holdfast set JOB lr=0.01")
        if name in SIZE_SETTINGS and not (value.isdecimal() and int(value) > 0):
            raise Usage(
                f"{name}={value!r}",
                why="a step takes a whole number of samples, from 1 on",
                fix=f"holdfast set {job} {name}=32",
            )
        filed = self._filed(job)
        if filed.job.spec.on is not None:
            raise Refused(
                f"{job} has no workers that could take a setting",
                why="it starts jobs; each has the settings of its file",
                fix="write it into the file, and submit that again",
            )
        if 0 < at_step <= filed.job.committed_step:
            raise Usage(
                f"step {at_step} of job {job} is over",
                why=f"step {filed.job.committed_step} is committed",
                fix="name a later step",
            )
        path, setting = layout.settings_path(job), Setting(name, value, at_step)

        def change(plain: Any) -> Any:
            known = codec.settings_from(path, plain)
            if known and known[-1] == setting:
                return plain
            if len(known) >= SETTINGS_MAX:
                raise Full(
                    f"job {job} has {SETTINGS_MAX} changed settings",
                    why="every worker is told all of them",
                    fix="stop the job, and submit it with the settings that it should have",
                )
            return codec.settings_to((*known, setting))

        self._update(job, path, change, setting_text(setting))

    def remove(self, job: str) -> None:
        """Forget a job that has ended, with its history and its commit records."""
        for _ in range(UPDATE_TRIES_MAX):
            filed = self._filed(job)
            if not filed.job.status.phase.final:
                raise Refused(
                    f"job {job} is {filed.job.status.phase.value}",
                    why="only a job that has ended is removed",
                    fix=f"holdfast stop {job}",
                )
            self._retired.retire(job, filed.job.next_worker)
            try:
                self._remove(job, filed)
            except Conflict:
                continue  # something was written between the look and the removal: look again
            return
        raise Conflict(f"job {job} changes all the time", fix=f"holdfast why {job}")

    def job(self, name: str) -> JobRecord:
        """The job as it is now; its parts may be some milliseconds apart. `Missing` if none."""
        return self._filed(name).job

    def jobs(self) -> dict[str, JobRecord]:
        """All jobs, by name."""
        found = {}
        for name in self._facts.names(layout.JOBS, fresh=True):
            filed = layout.read_job(self._facts, name)
            if filed is not None:
                found[name] = filed.job
        return found

    def history(self, job: str) -> list[HistoryEntry]:
        """What was decided about it and why, oldest first; only the newest entries are kept."""
        if self._submission(job) is None:
            raise _missing(job)
        decided = read_history(self._facts, job)
        # Each in its own order: the clocks of leaders and users may differ.
        return list(heapq.merge(decided, self._asked.read(job), key=lambda entry: entry.at_s))

    # --- queues and machines ------------------------------------------------------------------

    def put_queue(self, queue: QueueQuota) -> None:
        """Make or change a queue."""
        path = layout.queue_path(layout.check_name("queue", queue.name))
        Config(self._session, path).put(codec.queue_to(queue))

    def queues(self) -> dict[str, QueueQuota]:
        found = {}
        for name in self._facts.names(layout.QUEUES, fresh=True):
            path = layout.queue_path(name)
            plain = Config(self._session, path).get().value
            if plain is not None:
                found[name] = codec.queue_from(path, plain)
        return found

    def remove_queue(self, queue: str) -> None:
        """Forget a queue's shares; its jobs go on in a queue without any. Twice is once."""
        path = layout.queue_path(layout.check_name("queue", queue))
        if self._facts.read(path, fresh=True) is not None:
            gone = self._facts.transaction(lambda: self._facts.read(path, fresh=True) is None)
            gone.remove(path).commit()

    def drain_node(self, node: str) -> None:
        """Give the machine nothing new, and let its workers leave. It need not be there now."""
        layout.check_name("machine", node)
        self._change_draining(lambda names: names | {node})

    def undrain_node(self, node: str) -> None:
        self._change_draining(lambda names: names - {node})

    def draining_nodes(self) -> frozenset[str]:
        plain = Config(self._session, layout.DRAINING).get().value
        return frozenset() if plain is None else codec.names_from(layout.DRAINING, plain)

    # --- private ------------------------------------------------------------------------------

    def _now_s(self) -> float:
        return self._session.clock.wall_ms() / 1000

    def _filed(self, job: str) -> layout.StoredJob:
        layout.check_name("job", job)
        self._facts.read(layout.job_path(job), fresh=True)  # what follows is at least as new
        filed = layout.read_job(self._facts, job)
        if filed is None:
            raise _missing(job)
        return filed

    def _submission(self, job: str) -> str | None:
        path = layout.job_path(layout.check_name("job", job))
        plain = Config(self._session, path).get().value
        return None if plain is None else codec.desired_spec_from(path, plain).submission

    def _open_job(self, job: str) -> JobState:
        """What the leader says of it. `Missing` if there is no such job, `Refused` if it has
        ended."""
        path = layout.state_path(layout.check_name("job", job))
        fact = self._facts.read(path, fresh=True)
        if fact is None:
            raise _missing(job)
        state = codec.state_from(path, fact.data)
        phase = state.status.phase
        if phase.final:
            raise Refused(
                f"job {job} has {phase.value}",
                why="nothing changes about a job that has ended",
                fix="submit a new one",
            )
        return state

    def _change(self, job: str, change: Callable[[DesiredSpec], DesiredSpec], text: str) -> None:
        self._open_job(job)
        path = layout.job_path(job)

        def update(plain: Any) -> Any:
            return codec.desired_spec_to(change(codec.desired_spec_from(path, plain)))

        self._update(job, path, update, text)

    def _update(self, job: str, path: str, change: Callable[[Any], Any], text: str) -> None:
        """Change what users wrote at `path`, and say so in words, together. What is so already is
        not asked again."""
        config = Config(self._session, path)
        for _ in range(UPDATE_TRIES_MAX):
            before = config.get()
            if before.value is None:
                raise _missing(job)
            after = change(before.value)
            if after == before.value:
                return
            mark = stamps.new_stamp()
            transaction = self._facts.transaction(partial(self._asked.has, job, mark))
            try:
                config.put_in(transaction, after, before.version)
                self._asked.note_in(transaction, job, text, self._now_s(), mark)
                transaction.commit()
            except Conflict:
                continue  # somebody was first: look again
            return
        raise Conflict(
            f"job {job} was changed by others {UPDATE_TRIES_MAX} times in a row",
            fix="let fewer change it, or less often",
        )

    def _change_draining(self, change: Callable[[frozenset[str]], frozenset[str]]) -> None:
        def update(plain: Any) -> Any:
            known = frozenset() if plain is None else codec.names_from(layout.DRAINING, plain)
            names = change(known)
            if len(names) > DRAINING_NODES_MAX:
                raise Full(
                    f"{DRAINING_NODES_MAX} machines are being drained already",
                    fix="undrain those that are gone for good",
                )
            return codec.names_to(names)

        Config(self._session, layout.DRAINING).update(update)

    def _remove(self, job: str, filed: layout.StoredJob) -> None:
        """One transaction, upon the state that was seen."""
        transaction = self._facts.transaction(lambda: self._submission(job) != filed.submission)
        job_nodes.remove_in(transaction, self._facts, filed, self._now_s())
        transaction.commit()


def _workers(spec: JobSpec) -> str:
    """`1 worker`, `2 to 4 workers`."""
    if spec.workers_min == spec.workers_max:
        return many(spec.workers_max)
    return f"{spec.workers_min} to {many(spec.workers_max)}"


def _check_words(spec: JobSpec) -> None:
    for text in (*spec.command, *spec.env.values()):
        if "\0" in text:
            raise Usage(
                f"{text[:80]!a} cannot be given to a process",
                why="it has a zero byte, at which the system would cut it",
                fix="leave it out, or put it into a file",
            )


def _missing(job: str) -> Missing:
    return Missing(f"there is no job {job}", fix="holdfast jobs")
