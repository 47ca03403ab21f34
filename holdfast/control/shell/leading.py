"""One term of a leader: look, decide, send, write. `coordinator` has the life around it.

Levels: every tick looks at one snapshot of what is wanted and one of what is seen, and carries out
what brings them together. It may die between any two writes, and whoever leads next looks again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from holdfast.control.decide.commands import CommitCheckpoint, Decision, Order
from holdfast.control.decide.facts import DesiredState, ObservedState
from holdfast.control.decide.plans import SchedulePlan
from holdfast.control.decide.reconcile import node_capacities, reconcile
from holdfast.control.decide.schedule import plan
from holdfast.control.decide.triggers import decide_triggers, without_triggers
from holdfast.control.rpc.outstanding import Outstanding
from holdfast.control.rpc.port import Agents
from holdfast.control.shell.store_watch import StoreWatch
from holdfast.control.shell.topic_watch import TopicWatch
from holdfast.control.store.ledger import Ledger
from holdfast.control.store.manifests import ManifestWriter
from holdfast.coordination import Leadership
from holdfast.system import logs
from holdfast.system.clock import Clock
from holdfast.wire.errors import (
    BugError,
    Conflict,
    Fenced,
    HoldfastError,
    RetryError,
    SessionLost,
)
from holdfast.wire.limits import TROUBLE_S
from holdfast.wire.orders import StartWorker

# What a leader saw gets old while it writes: after this it looks again, whatever is left.
TICK_S_MAX: Final = 2.0

_log = logs.get(__name__)


def decide(desired: DesiredState, observed: ObservedState, now_s: float) -> list[Decision]:
    """What to do next: plan the room, then reconcile; and what triggers start. Pure."""
    started = decide_triggers(desired, observed.topics, now_s)
    desired = without_triggers(desired)  # they have no workers
    capacities = node_capacities(desired, observed)
    held = _held(desired)
    jobs = [job for job in desired.jobs.values() if job.placements or job.name not in held]
    planned = plan(jobs, capacities, desired.queues, now_s)
    if held:
        waiting = {name: replace(planned.of(name), held=held[name]) for name in held}
        planned = SchedulePlan({**planned.jobs, **waiting})
    decisions = reconcile(desired, observed, now_s, planned) + started
    users = {queue.name: queue.user for queue in desired.queues.values() if queue.user}
    return [_as_its_user(decision, users) for decision in decisions] if users else decisions


def _held(desired: DesiredState) -> dict[str, str]:
    """The jobs that cannot start a worker now, whatever room there is, and why. Those that have no
    worker keep no room from others meanwhile."""
    found = {}
    for name, job in desired.jobs.items():
        missing = sorted(set(job.wanted_spec.secrets.values()) - desired.secrets)
        if missing and not job.status.phase.final:
            which = " and ".join(missing)
            found[name] = f"waits for secret {which}: `holdfast secret set {missing[0]}`"
    return found


def _as_its_user(decision: Decision, users: Mapping[str, str]) -> Decision:
    order = decision.command
    if not isinstance(order, StartWorker) or order.queue not in users:
        return decision
    return replace(decision, command=replace(order, user=users[order.queue]))


def _unsendable(order: Order, error: Exception) -> BugError:
    return BugError(
        f"{type(order).__name__} for worker {order.worker} of {order.job} cannot be sent",
        why=f"{type(error).__name__}: {error}",
        fix=f"holdfast stop {order.job} --now",
    )


class LeaderTerm:
    """What a leader does in its term. For one thread."""

    def __init__(
        self,
        leadership: Leadership,
        ledger: Ledger,
        agents: Agents,
        manifests: ManifestWriter,
        clock: Clock,
        store: StoreWatch | None = None,
        topics: TopicWatch | None = None,
    ) -> None:
        self._topics = topics
        self._leadership = leadership
        self._ledger = ledger
        self._agents = agents
        self._manifests = manifests
        self._clock = clock
        self._store = store
        self._outstanding = Outstanding()
        self._troubled: dict[str, tuple[float, str]] = {}  # job -> until when, and what

    def tick(self) -> bool:
        """Look, decide and carry out once; whether it should look again at once.

        Orders go first: they follow from what was written before, and are sent without waiting.
        `Fenced` and `SessionLost`: the term is over. `RetryError`: the plane did not answer.
        """
        began_s = self._clock.now_s()
        desired = self._ledger.refresh()
        now_s = self._clock.wall_ms() / 1000
        decisions = [
            decision
            for decision in decide(desired, self._observed(desired), now_s)
            # What cannot be read is not gone: nothing is decided about its workers.
            if decision.command.job not in self._ledger.unreadable
        ]
        sent = self._send(decisions)
        again = self._write(decisions, began_s)
        for job, orders in sent.items():
            self._note(job, orders)
        return again

    def _observed(self, desired: DesiredState) -> ObservedState:
        observed = self._agents.observed()
        if self._topics is not None:
            self._topics.expects(desired)
            if self._topics.offsets:
                observed = replace(observed, topics=self._topics.offsets)
        if self._store is None:
            return observed
        self._store.expects(desired)
        return replace(observed, store=self._store.trouble) if self._store.trouble else observed

    # --- orders -----------------------------------------------------------------------------

    def _send(self, decisions: Sequence[Decision]) -> dict[str, list[Decision]]:
        """Send the orders that are due, as long as we may act; those that are new, by job."""
        orders = [d for d in decisions if isinstance(d.command, Order)]
        self._outstanding.keep(d.command for d in orders if isinstance(d.command, Order))
        told: dict[str, list[Decision]] = {}
        for decision in orders:
            order = decision.command
            assert isinstance(order, Order)
            connection, now_s = self._agents.connection(order.node), self._clock.now_s()
            if not connection or not self._outstanding.is_due(order, connection, now_s):
                continue
            if not self._leadership.acting:
                break
            sendable = self._with_secrets(decision)
            if sendable is None:
                continue  # `_held` says what it waits for
            if self._outstanding.is_new(order):
                told.setdefault(order.job, []).append(decision)
                self._log("order", decision)
            try:
                self._agents.order(self._leadership.term, sendable)
            except (HoldfastError, TypeError, ValueError) as error:
                # It cannot be put into a message. That is this job's trouble, and nobody else's.
                self._trouble(order.job, _unsendable(order, error))
            self._outstanding.sent(order, connection, now_s)
        return told

    def _with_secrets(self, decision: Decision) -> Decision | None:
        """The order with the values that it names, which no log and no history gets to see; None:
        one of them is gone."""
        order = decision.command
        if not isinstance(order, StartWorker) or not order.references:
            return decision
        found: dict[str, str] = {}
        for variable, name in order.references.items():
            value = self._ledger.secret(name)
            if value is None:
                return None
            found[variable] = value
        return replace(decision, command=replace(order, secrets=found))

    # --- records ----------------------------------------------------------------------------

    def _write(self, decisions: Sequence[Decision], began_s: float) -> bool:
        """Write the records, job by job, until what we saw is too old; whether to look again."""
        by_job: dict[str, list[Decision]] = {}
        for decision in decisions:
            if not isinstance(decision.command, Order):
                by_job.setdefault(decision.command.job, []).append(decision)
        commits = {
            job
            for job, records in by_job.items()
            if any(isinstance(record.command, CommitCheckpoint) for record in records)
        }
        self._manifests.keep(commits)
        again = False
        for job, records in by_job.items():
            if self._clock.now_s() > began_s + TICK_S_MAX:
                return True
            until_s, _ = self._troubled.get(job, (0.0, ""))
            if self._clock.now_s() >= until_s:
                again = self._write_job(job, records) or again
        return again

    def _write_job(self, job: str, records: list[Decision]) -> bool:
        """Whether anything was written, or there is something new to see."""
        wrote = False
        try:
            while records:
                some, manifest = self._next(records)
                if not some:
                    break  # what follows a commit is decided again when that is done
                count = self._ledger.carry_out(job, some, manifest)
                for decision in some[:count]:
                    self._log("record", decision)
                records = records[count:]
                wrote = True
        except Conflict as error:
            _log.info("decided upon an old snapshot; looking again", job=job, why=error.why)
            return True
        except (Fenced, SessionLost, RetryError):
            raise
        except HoldfastError as error:
            self._trouble(job, error)
        else:
            self._troubled.pop(job, None)
        return wrote

    def _next(self, records: list[Decision]) -> tuple[list[Decision], str]:
        """The records that go together next; a commit goes alone, when its manifest is durable."""
        first = records[0].command
        if isinstance(first, CommitCheckpoint):
            key = self._manifests.key_of(first, self._clock.now_s())
            return ([], "") if key is None else (records[:1], key)
        for at, decision in enumerate(records):
            if isinstance(decision.command, CommitCheckpoint):
                return records[:at], ""
        return records, ""

    def _trouble(self, job: str, error: HoldfastError) -> None:
        """A job's own trouble does not hold up the others. It is told once, and tried again."""
        _, known = self._troubled.get(job, (0.0, ""))
        self._troubled[job] = (self._clock.now_s() + TROUBLE_S, str(error))
        if str(error) != known:
            _log.error("a decision cannot be carried out", job=job, error=str(error))
            self._note(job, str(error))

    def _note(self, job: str, what: Sequence[Decision] | str) -> None:
        """Into the job's history. It is for people: what cannot be noted is done all the same."""
        try:
            if isinstance(what, str):
                self._ledger.note_trouble(job, what)
            else:
                self._ledger.note(job, what)
        except (Fenced, SessionLost, RetryError):
            raise
        except HoldfastError as error:
            _log.warning("the history cannot be written", job=job, error=str(error))

    def _log(self, kind: str, decision: Decision) -> None:
        command = decision.command
        _log.info(
            kind,
            term=self._leadership.term,
            job=command.job,
            what=type(command).__name__,
            reason=decision.reason,
        )
