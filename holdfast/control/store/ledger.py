"""The leader's side of the facts: one snapshot to decide upon, and records that only a leader of
the present term can write.

What the snapshot is. After `read` every node is as it was at some moment since the call began.
`refresh` reads again what watches have told of; what users did a moment ago may be missing, and
then its wake is still to come. The nodes that the leader writes are exact: nobody else's
transaction passes the fence, so after one `read` within the term they are what this ledger wrote
last. They are read again when a write's outcome is in doubt. A leader that was deposed may look
at an old snapshot; what it decides upon it is `Fenced`.

Watches only wake. A wake marks what to read again, and carries no news.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from holdfast.control.decide.commands import (
    CommitCheckpoint,
    Decision,
    ForgetJob,
    Order,
    StartJob,
)
from holdfast.control.decide.facts import DesiredState, JobRecord
from holdfast.control.decide.records import apply_record, started_job
from holdfast.control.store import codec, history, job_nodes, layout
from holdfast.control.store.audit import AuditLog
from holdfast.control.store.history import HistoryPages
from holdfast.control.store.layout import StoredJob
from holdfast.control.store.retired import Retired
from holdfast.control.store.secret_store import value_from
from holdfast.coordination import (
    Config,
    Fact,
    Facts,
    Leadership,
    Mirror,
    Mirrored,
    Session,
    Transaction,
    single,
    stamps,
)
from holdfast.coordination.waits import Wake
from holdfast.system.clock import Clock
from holdfast.wire.errors import BugError, Conflict, Corrupt, HoldfastError
from holdfast.wire.history import HistoryEntry
from holdfast.wire.triggers import ranges_text

# Records of one job in one transaction; beyond it a lost reply would hide too much.
RECORDS_PER_TRANSACTION: Final = 256
# A transaction is one frame, with paths and heads beside its values.
TRANSACTION_BYTES_MAX: Final = 768 * 1024

T = TypeVar("T")


class Ledger:
    """One term's view of the facts. For one thread; `wake` is called on others."""

    def __init__(self, session: Session, leadership: Leadership, wake: Wake) -> None:
        self._session = session
        self._leadership = leadership
        self._clock: Clock = session.clock
        self._facts = Facts(session)
        self._retired = Retired(session)
        self._jobs = Mirrored(
            layout.job_path("*"), layout.job_from, watched=layout.WATCHED, parts=layout.PARTS
        )
        self._queues = Mirrored(layout.queue_path("*"), _plain(codec.queue_from))
        self._draining = Mirrored(layout.DRAINING, _plain(codec.names_from))
        self._secrets = Mirrored(layout.secret_path("*"), _plain(value_from))
        every = (self._jobs, self._queues, self._draining, self._secrets)
        self._mirror = Mirror(session, *every, wake=wake)
        self._rings: dict[str, tuple[str, HistoryPages]] = {}  # with the submission that it is of

    @property
    def desired(self) -> DesiredState:
        """The snapshot, as a value that does not change."""
        jobs = {_name(path): filed.job for path, filed in sorted(self._jobs.values.items())}
        queues = {_name(path): queue for path, queue in self._queues.values.items()}
        draining = self._draining.values.get(layout.DRAINING, frozenset())
        return DesiredState(jobs, queues, draining, frozenset(map(_name, self._secrets.values)))

    @property
    def unreadable(self) -> dict[str, Corrupt]:
        """Jobs that cannot be read: left alone, and no other is kept from its own."""
        return {_name(path): error for path, error in self._jobs.unreadable.items()}

    def secret(self, name: str) -> str | None:
        """The value of a secret, for the order that starts a worker."""
        return self._secrets.values.get(layout.secret_path(name))

    # --- reading ----------------------------------------------------------------------------

    def read(self) -> DesiredState:
        """Everything anew."""
        self._rings.clear()
        self._mirror.invalidate()
        return self.refresh()

    def refresh(self) -> DesiredState:
        """What watches have told of, or what is in doubt. Nothing to read costs nothing."""
        for path in self._mirror.refresh():
            if path not in self._jobs.values:
                self._rings.pop(_name(path), None)
        for mirrored in (self._queues, self._draining, self._secrets):
            for error in mirrored.unreadable.values():
                raise error  # nobody knows who may have what
        return self.desired

    def close(self) -> None:
        """Nobody is woken any more."""
        self._mirror.close()

    # --- writing ----------------------------------------------------------------------------

    def carry_out(self, job: str, decisions: Sequence[Decision], manifest: str = "") -> int:
        """Write the first of these records of one job, in order, in one fenced transaction; how
        many were written. Their reasons are written with them.

        `manifest` is the key of the manifest of a `CommitCheckpoint`, which must be the only
        record: it is durable already. Only nodes that change are written, each upon the version
        that was read. `Conflict`, `Fenced`: nothing was written. `Unavailable`: nobody knows.
        After an error the job is read again before anything else is decided about it.
        """
        some = list(decisions[:RECORDS_PER_TRANSACTION])
        try:
            while True:
                written = self._carry_out(job, some, manifest)
                if written:
                    return len(some)
                some = some[: len(some) // 2]  # too large for one frame
        except HoldfastError:
            self._mark_dirty(job)
            raise

    def note(self, job: str, decisions: Sequence[Decision]) -> None:
        """Write the reasons of orders into the history of their job, if there is one."""
        self._write_note(job, history.entries_of(decisions, self._now_s(), self._leadership.term))

    def note_trouble(self, job: str, reason: str) -> None:
        """Say in a job's history why nothing goes on."""
        entry = HistoryEntry(self._now_s(), self._leadership.term, "Trouble", reason)
        self._write_note(job, [entry])

    def _write_note(self, job: str, entries: list[HistoryEntry]) -> None:
        filed = self._jobs.values.get(layout.job_path(job))
        if filed is None:
            return
        transaction = self._leadership.transaction()
        try:
            ring = history.add(transaction, job, self._ring(job, filed), entries)
            ring = ring.committed(transaction.commit())
        except HoldfastError:
            self._mark_dirty(job)
            raise
        self._rings[job] = (filed.submission, ring)

    def _carry_out(self, name: str, decisions: list[Decision], manifest: str) -> bool:
        """False if it is too large, and could be less."""
        filed = self._jobs.values.get(layout.job_path(name))
        if filed is None:
            raise Conflict(f"there is no job {name} any more", fix="nothing: it is decided again")
        after, done = filed.job, []
        for decision in decisions:
            record = decision.command
            if isinstance(record, Order) or record.job != name:
                raise BugError(f"{type(record).__name__} is not a record of job {name}")
            if isinstance(record, CommitCheckpoint) and (not manifest or len(decisions) > 1):
                raise BugError(f"a commit of {name} goes alone, and after its manifest")
            before = after
            now_s, term = self._now_s(), self._leadership.term
            after = apply_record(before, record, now_s=now_s, term=term, manifest=manifest)
            if after is not before:
                done.append(decision)
        if not done:
            return True
        transaction = self._leadership.transaction()
        versions = self._write_job(transaction, filed, after)
        others = self._write_others(transaction, done)
        entries = history.entries_of(done, self._now_s(), self._leadership.term)
        ring = history.add(transaction, name, self._ring(name, filed), entries)
        if transaction.size_bytes > TRANSACTION_BYTES_MAX and len(decisions) > 1:
            return False
        ring = ring.committed(transaction.commit())
        written = StoredJob(after, filed.submission, versions)
        self._mirror.put(self._jobs, layout.job_path(name), written)
        self._rings[name] = (filed.submission, ring)
        if others:
            self._mirror.invalidate(layout.JOBS)
        return True

    def _write_others(self, transaction: Transaction, done: Sequence[Decision]) -> bool:
        """Put the jobs that a trigger starts and forgets into the transaction; whether there are
        any."""
        records = [decision.command for decision in done]
        forgotten = [record for record in records if isinstance(record, ForgetJob)]
        started = [record for record in records if isinstance(record, StartJob)]
        for forget in forgotten:
            self._forget(transaction, forget)
        for start in started:
            self._start(transaction, start)
        return bool(forgotten or started)

    def _start(self, transaction: Transaction, record: StartJob) -> None:
        name, given = record.spec.name, record.spec.triggered
        first, retired = self._retired.first(name)
        self._retired.check_in(transaction, retired)
        job = started_job(record, first)
        desired = codec.desired_spec_of(job, uuid.uuid4().hex)
        job_nodes.create_in(transaction, self._session, desired, codec.state_of(job))
        assert given is not None, "a trigger starts it for something"
        what = f"{given.count:,} records of topic {given.topic} ({ranges_text(given.ranges)})"
        asked = AuditLog(self._facts, f"trigger {record.job}")
        asked.note_in(transaction, name, f"run for {what}", record.at_s, stamps.new_stamp())

    def _forget(self, transaction: Transaction, record: ForgetJob) -> None:
        filed = self._jobs.values.get(layout.job_path(record.name))
        if filed is None:
            return  # its user was first
        if not filed.job.status.phase.final:
            raise Conflict(f"job {record.name} lives again", fix="nothing: it is decided again")
        self._retired.retire(record.name, filed.job.next_worker)
        job_nodes.remove_in(transaction, self._facts, filed, self._now_s())

    def _write_job(
        self, transaction: Transaction, filed: StoredJob, after: JobRecord
    ) -> dict[str, int]:
        """Put the nodes that differ into the transaction; the versions that they will have.

        The state's version is always checked: it is another for another job of the same name.
        """
        before, name = filed.job, after.name
        changes: dict[str, bytes | None] = {}
        state = codec.state_to(codec.state_of(after))
        if state != codec.state_to(codec.state_of(before)):
            changes[layout.state_path(name)] = state
        else:
            path = layout.state_path(name)
            transaction.check(path, filed.versions[path])
        if after.view is not None and after.view != before.view:
            changes[layout.view_path(name)] = codec.view_to(after.view)
        if after.placements is not before.placements:
            old, new = codec.pages_of(before.placements), codec.pages_of(after.placements)
            for page in sorted(set(old) | set(new)):
                if old.get(page) != new.get(page):
                    held = new.get(page)
                    data = codec.placements_to(held) if held else None
                    changes[layout.page_path(name, page)] = data
        known = {checkpoint.step: checkpoint for checkpoint in before.checkpoints}
        kept = {checkpoint.step: checkpoint for checkpoint in after.checkpoints}
        for step in sorted(set(known) ^ set(kept)):
            data = codec.checkpoint_to(kept[step]) if step in kept else None
            changes[layout.checkpoint_path(name, step)] = data
        versions = _put(transaction, filed.versions, changes)
        asked = (before.checkpoint_asked, before.recovery)
        if (after.checkpoint_asked, after.recovery) != asked:
            path = layout.job_path(name)
            desired = codec.desired_spec_to(codec.desired_spec_of(after, filed.submission))
            Config(self._session, path).put_in(transaction, desired, filed.versions[path])
            versions[path] += 1
        return versions

    def _ring(self, job: str, filed: StoredJob) -> HistoryPages:
        submission, ring = self._rings.get(job, ("", None))
        if ring is None or submission != filed.submission:
            ring = history.read_pages(self._facts, job)
            self._rings[job] = (filed.submission, ring)
        return ring

    def _mark_dirty(self, job: str) -> None:
        """Read this job again, as a whole, at the next refresh."""
        self._rings.pop(job, None)
        self._mirror.invalidate(layout.job_path(job))

    def _now_s(self) -> float:
        return self._clock.wall_ms() / 1000


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _plain(decode: Callable[[str, Any], T]) -> Callable[[str, Mapping[str, Fact]], T | None]:
    """For what users write, with the marks of its writers."""
    return single(lambda path, data: decode(path, stamps.decoded(path, data).value))


def _put(
    transaction: Transaction, known: Mapping[str, int], changes: Mapping[str, bytes | None]
) -> dict[str, int]:
    versions = dict(known)
    for path, data in changes.items():
        if data is None:
            transaction.remove(path, versions.pop(path))
        elif path in versions:
            transaction.replace(path, data, versions[path])
            versions[path] += 1
        else:
            transaction.create(path, data)
            versions[path] = 0
    return versions
