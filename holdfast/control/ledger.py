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

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from holdfast.control import codec, filing, history
from holdfast.control.commands import CommitCheckpoint, Decision, Order
from holdfast.control.facts import Desired, Job, Queue
from holdfast.control.filing import Filed
from holdfast.control.history import Ring
from holdfast.control.records import apply_record
from holdfast.control.secret_store import value_from
from holdfast.coordination import Config, Doubts, Facts, Leadership, Session, Transaction, stamps
from holdfast.coordination.waits import Wake
from holdfast.wire import logs
from holdfast.wire.clock import Clock
from holdfast.wire.errors import BugError, Conflict, Corrupt, HoldfastError
from holdfast.wire.limits import JOB_READERS, RECORDS_PER_TRANSACTION, TRANSACTION_BYTES_MAX

_log = logs.get(__name__)


class Ledger:
    """One term's view of the facts. For one thread; `wake` is called on others."""

    def __init__(self, session: Session, leadership: Leadership, wake: Wake) -> None:
        self._session = session
        self._leadership = leadership
        self._clock: Clock = session.clock
        self._facts = Facts(session)
        self._doubts = Doubts(self._facts, wake)
        self._filed: dict[str, Filed] = {}
        self._queues: dict[str, Queue] = {}
        self._draining: frozenset[str] = frozenset()
        self._secrets: dict[str, str] = {}
        self._rings: dict[str, Ring] = {}
        self.unreadable: dict[str, HoldfastError] = {}

    @property
    def desired(self) -> Desired:
        """The snapshot, as a value that does not change."""
        jobs = {name: filed.job for name, filed in sorted(self._filed.items())}
        return Desired(jobs, dict(self._queues), self._draining, frozenset(self._secrets))

    def secret(self, name: str) -> str | None:
        """The value of a secret, for the order that starts a worker."""
        return self._secrets.get(name)

    # --- reading ----------------------------------------------------------------------------

    def read(self) -> Desired:
        """Everything anew."""
        self._doubts.begin((filing.JOBS, filing.QUEUES, filing.DRAINING, filing.SECRETS))
        self._filed.clear()
        self._queues.clear()
        self._secrets.clear()
        self._rings.clear()
        self.unreadable.clear()
        return self.refresh()

    def refresh(self) -> Desired:
        """What watches have told of, or what is in doubt. Nothing to read costs nothing."""
        dirty = self._doubts.take()
        try:
            self._reread(dirty)
        except BaseException:
            self._doubts.add(*dirty)
            raise
        return self.desired

    def close(self) -> None:
        """Nobody is woken any more."""
        self._doubts.close()

    def _reread(self, dirty: set[str]) -> None:
        changed = {path.split("/")[3] for path in dirty if path.startswith(f"{filing.JOBS}/")}
        if filing.JOBS in dirty:
            names = set(self._facts.names(filing.JOBS, self._doubts.watch(filing.JOBS), fresh=True))
            for gone in set(self._filed) - names:
                self._drop(gone)
                self._doubts.forget(filing.job_path(gone), filing.settings_path(gone))
            self.unreadable = {n: e for n, e in self.unreadable.items() if n in names}
            changed |= names - set(self._filed)
        jobs = sorted(changed)
        # Each job takes a few round trips; several are on their way at a time.
        with ThreadPoolExecutor(JOB_READERS) as readers:
            for name, filed in zip(jobs, readers.map(self._read_job, jobs), strict=True):
                self._take(name, filed)
        queues = {path.split("/")[3] for path in dirty if path.startswith(f"{filing.QUEUES}/")}
        if filing.QUEUES in dirty:
            queues |= set(
                self._facts.names(filing.QUEUES, self._doubts.watch(filing.QUEUES), fresh=True)
            )
            queues |= set(self._queues)
        for name in sorted(queues):
            self._reread_queue(name)
        if filing.DRAINING in dirty:
            fact = self._facts.read(
                filing.DRAINING, self._doubts.watch(filing.DRAINING), fresh=True
            )
            plain = stamps.decoded(filing.DRAINING, fact.data).value if fact else None
            self._draining = codec.names_from(filing.DRAINING, plain) if fact else frozenset()
        self._reread_secrets(dirty)

    def _reread_secrets(self, dirty: set[str]) -> None:
        top = filing.SECRETS
        names = {path.split("/")[3] for path in dirty if path.startswith(f"{top}/")}
        if top in dirty:
            names |= set(self._facts.names(top, self._doubts.watch(top), fresh=True))
            names |= set(self._secrets)
        paths = {filing.secret_path(name): name for name in sorted(names)}
        found = self._facts.read_all(
            list(paths), {path: self._doubts.watch(path) for path in paths}
        )
        for path, name in paths.items():
            self._secrets.pop(name, None)
            if path in found:
                self._secrets[name] = value_from(path, filing.plain(path, found))

    def _read_job(self, name: str) -> Filed | Corrupt | None:
        try:
            return filing.read_job(self._facts, name, self._doubts.watch)
        except Corrupt as error:
            return error

    def _take(self, name: str, filed: Filed | Corrupt | None) -> None:
        """A job that cannot be read is left alone, and does not keep the others from theirs."""
        if isinstance(filed, Corrupt):
            if str(self.unreadable.get(name)) != str(filed):
                _log.error("a job cannot be read; it is left as it is", job=name, error=str(filed))
            self._drop(name)
            self.unreadable[name] = filed
            return
        self.unreadable.pop(name, None)
        if filed is None:
            self._drop(name)
            return
        known = self._filed.get(name)
        if known is None or known.submission != filed.submission:
            self._rings.pop(name, None)
        self._filed[name] = filed

    def _reread_queue(self, name: str) -> None:
        path = filing.queue_path(name)
        fact = self._facts.read_all([path], {path: self._doubts.watch(path)}).get(path)
        if fact is None:
            self._queues.pop(name, None)
        else:
            self._queues[name] = codec.queue_from(path, stamps.decoded(path, fact.data).value)

    def _drop(self, job: str) -> None:
        self._filed.pop(job, None)
        self._rings.pop(job, None)

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
            self._doubt(job)
            raise

    def note(self, job: str, decisions: Sequence[Decision]) -> None:
        """Write the reasons of orders into the history of their job, if there is one."""
        self._write_note(job, history.entries_of(decisions, self._now_s(), self._leadership.term))

    def note_trouble(self, job: str, reason: str) -> None:
        """Say in a job's history why nothing goes on."""
        entry = codec.Entry(self._now_s(), self._leadership.term, "Trouble", reason)
        self._write_note(job, [entry])

    def _write_note(self, job: str, entries: list[codec.Entry]) -> None:
        if job not in self._filed:
            return
        transaction = self._leadership.transaction()
        try:
            ring = history.add(transaction, job, self._ring(job), entries)
            transaction.commit()
        except HoldfastError:
            self._doubt(job)
            raise
        self._rings[job] = ring

    def _carry_out(self, name: str, decisions: list[Decision], manifest: str) -> bool:
        """False if it is too large, and could be less."""
        filed = self._filed.get(name)
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
        entries = history.entries_of(done, self._now_s(), self._leadership.term)
        ring = history.add(transaction, name, self._ring(name), entries)
        if transaction.size_bytes > TRANSACTION_BYTES_MAX and len(decisions) > 1:
            return False
        transaction.commit()
        self._filed[name] = Filed(after, filed.submission, versions)
        self._rings[name] = ring
        return True

    def _write_job(self, transaction: Transaction, filed: Filed, after: Job) -> dict[str, int]:
        """Put the nodes that differ into the transaction; the versions that they will have.

        The state's version is always checked: it is another for another job of the same name.
        """
        before, name = filed.job, after.name
        changes: dict[str, bytes | None] = {}
        state = codec.state_to(codec.state_of(after))
        if state != codec.state_to(codec.state_of(before)):
            changes[filing.state_path(name)] = state
        else:
            path = filing.state_path(name)
            transaction.check(path, filed.versions[path])
        if after.view is not None and after.view != before.view:
            changes[filing.view_path(name)] = codec.view_to(after.view)
        if after.placements is not before.placements:
            old, new = codec.pages_of(before.placements), codec.pages_of(after.placements)
            for page in sorted(set(old) | set(new)):
                if old.get(page) != new.get(page):
                    held = new.get(page)
                    data = codec.placements_to(held) if held else None
                    changes[filing.page_path(name, page)] = data
        known = {checkpoint.step: checkpoint for checkpoint in before.checkpoints}
        kept = {checkpoint.step: checkpoint for checkpoint in after.checkpoints}
        for step in sorted(set(known) ^ set(kept)):
            data = codec.checkpoint_to(kept[step]) if step in kept else None
            changes[filing.checkpoint_path(name, step)] = data
        versions = _put(transaction, filed.versions, changes)
        asked = (before.checkpoint_asked, before.recovery)
        if (after.checkpoint_asked, after.recovery) != asked:
            path = filing.job_path(name)
            wish = codec.wish_to(codec.wish_of(after, filed.submission))
            Config(self._session, path).put_in(transaction, wish, filed.versions[path])
            versions[path] += 1
        return versions

    def _ring(self, job: str) -> Ring:
        if job not in self._rings:
            self._rings[job] = history.read_ring(self._facts, job)
        return self._rings[job]

    def _doubt(self, job: str) -> None:
        """Read this job again, as a whole, at the next refresh."""
        self._rings.pop(job, None)
        self._doubts.add(filing.job_path(job))

    def _now_s(self) -> float:
        return self._clock.wall_ms() / 1000


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
