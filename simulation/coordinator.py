"""A coordinator's shell: election, snapshots, fenced transactions, orders.

It decides by the real `plan`, `reconcile` and `apply_record`. It does nothing to be safe but what
the real one does: every write is one transaction that checks the two nodes of its leadership, and
every order carries its term. A deposed leader goes on with its old snapshot until it is told.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from holdfast.agent.ports import Welcome
from holdfast.control.decide.commands import (
    CommitCheckpoint,
    Decision,
    DropCheckpoint,
    MarkCheckpointUnreadable,
    Record,
    RecoverCheckpoints,
    WriteView,
)
from holdfast.control.decide.facts import DesiredState, JobRecord, NodeFacts, ObservedState
from holdfast.control.decide.records import apply_record
from holdfast.control.rpc.outstanding import Outstanding
from holdfast.coordination.embedded import protocol as p
from holdfast.coordination.embedded.acl import OPEN
from holdfast.coordination.embedded.transactions import (
    CheckVersion,
    Create,
    Delete,
    Multi,
    Part,
    SetData,
    TreeEvent,
)
from holdfast.coordination.embedded.tree import Tree
from holdfast.wire.errors import Conflict
from holdfast.wire.orders import Order
from simulation.agent_session import CONTACT, LeaderContact
from simulation.blobs import Manifest
from simulation.candidate import TERM, Candidate, Deposed
from simulation.decide import Decider
from simulation.flow import Steps, Wait
from simulation.plane import refused_at

if TYPE_CHECKING:
    from simulation.agent import Agent
    from simulation.agent_stream import Stream
    from simulation.world import World

# Between two looks at the world when nothing wakes the leader; doubled while nothing happens.
LOOK_S: Final = 0.8
LOOK_S_MAX: Final = 30.0
JOBS: Final = "/holdfast/jobs"
NODES: Final = "/holdfast/nodes"


@dataclass(slots=True)
class ReadPlane:
    """What a leader read of the plane, and where: each job with its node's version."""

    jobs: dict[str, JobRecord] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=dict)
    nodes: dict[str, int] = field(default_factory=dict)  # node -> its session
    draining: frozenset[str] = frozenset()


class Coordinator(Candidate):
    """One of the coordinators; its clock is wrong by `skew_s`."""

    def __init__(self, world: World, name: str, skew_s: float) -> None:
        self.skew_s = skew_s
        super().__init__(world, name)

    def forget(self) -> None:
        super().forget()
        self.done = 0  # commits in this term
        self.seen: ReadPlane | None = None
        self.reports: dict[str, NodeFacts] = {}
        self._marks: dict[str, tuple[int, ...]] = {}
        self._sessions: dict[str, str] = {}  # in which a node has reported
        self._streams: dict[str, int] = {}  # how often a node has connected
        self._outstanding = Outstanding()
        self._reasons: dict[tuple[str, int], str] = {}  # of views that are being written
        self._decider = Decider(own_checks=self.world.own_checks)
        self._idle_s = LOOK_S
        self._fresh = True  # an agent has reported something new

    def now_s(self) -> float:
        return self.kernel.now_s + self.skew_s

    # --- leading --------------------------------------------------------------------------------

    def lead(self) -> Steps:
        yield from self._announce()
        self.client.watches = _concerns_a_leader
        while True:
            if self.seen is None or self.stale:
                self.stale = False
                seen = yield self.world.plane.read(self.client, self._reader)
                if seen == p.SESSION_EXPIRED:
                    raise Deposed
                if seen is None:
                    self.stale = True
                    continue
                self.seen = seen
                self._know_nodes(seen)
            self._fresh = False
            busy = yield from self._tick(self.seen)
            self._idle_s = LOOK_S if busy else min(2 * self._idle_s, LOOK_S_MAX)
            if not self.stale and not self._fresh:
                yield self.until_woken(self._idle_s)
            yield self.pause_for(self.world.settings.gather_s)

    def _announce(self) -> Steps:
        """Say in the plane where agents reach this leader, unless it leads no more."""
        contact = self.world.plane.keep(LeaderContact(self.term, self.name))
        parts = (CheckVersion(TERM, self.term), SetData(CONTACT, contact, -1))
        outcome = None
        while outcome is None:
            outcome = yield self.world.plane.ask(self.client, Multi(parts))
        if refused_at(outcome) is not None:
            raise Deposed

    def _tick(self, seen: ReadPlane) -> Generator[Wait, Any, bool]:
        """Decide and carry out once; whether anything was decided."""
        nodes = {node: self.reports[node] for node in seen.nodes if self._has_reported(seen, node)}
        unreported = frozenset(seen.nodes.keys() - nodes.keys())
        desired = DesiredState(seen.jobs, {}, seen.draining)
        observed = ObservedState(nodes, unreported)
        decisions = self._decider.decide(desired, observed, self.now_s())
        if decisions and self.world.faults.strikes("stall"):
            self.world.strikes.depose(self)
            yield self.pause_for(0.001)
        busy = self._send(seen, [one for one in decisions if isinstance(one.command, Order)])
        records: dict[str, list[Record]] = {}
        self._reasons = {
            (one.command.job, one.command.view.number): one.reason
            for one in decisions
            if isinstance(one.command, WriteView)
        }
        for decision in decisions:
            if not isinstance(decision.command, Order):
                records.setdefault(decision.command.job, []).append(decision.command)
        for job, of_job in records.items():
            busy = True
            for some in _together(of_job):
                if not (yield from self._commit(seen, job, some)):
                    self.stale = True
                    return True
        return busy

    def _send(self, seen: ReadPlane, decisions: list[Decision]) -> bool:
        """Send the orders that are not on their way; whether there were any."""
        orders: list[Any] = [decision.command for decision in decisions]
        self._outstanding.keep(orders)
        busy, now_s = False, self.kernel.now_s
        for decision, order in zip(decisions, orders, strict=True):
            connection = self._streams.get(order.node, 0)
            if self._outstanding.is_due(order, connection, now_s):
                self._outstanding.sent(order, connection, now_s)
                self._order(order, seen.nodes.get(order.node, 0), decision.reason)
                busy = True
        return busy

    def _order(self, order: Order, session: int, reason: str) -> None:
        host = self.world.hosts[order.node]
        term = self.term
        self.tell("orders", order, "-", reason)
        self.world.happened[type(order).__name__] += 1
        self.world.network.send(
            self.name, host.agent, host.name, lambda: host.agent.order(term, session, order, self)
        )

    def _commit(
        self, seen: ReadPlane, name: str, records: list[Record]
    ) -> Generator[Wait, Any, bool]:
        """These records of one job in one fenced transaction; False if it did not happen."""
        plane, client = self.world.plane, self.client
        job, manifest, done = seen.jobs[name], "", list[Record]()
        if isinstance(records[0], CommitCheckpoint):
            manifest = yield from self._write_manifest(job, records[0])
        after = job
        try:
            for record in records:
                before, now_s = after, self.now_s()
                after = apply_record(before, record, now_s=now_s, term=self.term, manifest=manifest)
                if after is not before:
                    done.append(record)
        except Conflict:
            return False
        if not done:
            return True
        operations = self._guarded(seen, done, after)
        while True:
            outcome = yield plane.ask(client, Multi(operations))
            if outcome is None:
                committed = yield from self._committed()
                if not committed:
                    continue
            elif (refused := refused_at(outcome)) is not None:
                if outcome.error != p.OK or refused < 2:
                    self.world.happened["fenced"] += 1
                    raise Deposed
                return False
            break
        self.done += 1
        seen.jobs[name] = after
        seen.versions[name] += 1
        for record in done:
            self.tell("wrote", record)
            self.world.happened[type(record).__name__] += 1
            if isinstance(record, DropCheckpoint):
                self._remove_blobs(job, record.step)
            elif isinstance(record, WriteView):
                reason = self._reasons[record.job, record.view.number]
                self.world.checks.view_sent(name, record.view, reason)
        return True

    def _guarded(
        self, seen: ReadPlane, records: list[Record], after: JobRecord
    ) -> tuple[Part, ...]:
        """The records' writes, together with the checks that only a leader passes."""
        path = f"{JOBS}/{after.name}"
        operations: list[Part] = [
            CheckVersion(TERM, self.term),
            SetData(self.candidate, b"", self.done),
            SetData(path, self.world.plane.keep(after), seen.versions[after.name]),
        ]
        for record in records:
            if isinstance(record, CommitCheckpoint):
                data = self.world.plane.keep(after.checkpoints[-1])
                commit = f"{path}/checkpoints/{record.attempt.step}"
                operations.append(Create(commit, data, OPEN, p.FLAG_PERSISTENT, -1, False))
            if isinstance(record, RecoverCheckpoints):
                for again in after.checkpoints:
                    kept = self.world.plane.keep(again)
                    commit = f"{path}/checkpoints/{again.step}"
                    operations.append(Create(commit, kept, OPEN, p.FLAG_PERSISTENT, -1, False))
            if isinstance(record, DropCheckpoint | MarkCheckpointUnreadable):
                operations.append(Delete(f"{path}/checkpoints/{record.step}", -1))
        return tuple(operations)

    def _committed(self) -> Generator[Wait, Any, bool]:
        """Whether the transaction whose reply was lost took effect: our node counts them."""
        candidate = self.candidate
        while True:
            version = yield self.world.plane.read(
                self.client, lambda tree: _version(tree, candidate)
            )
            if version is None:
                continue
            if version in (p.SESSION_EXPIRED, _GONE):
                raise Deposed
            return bool(version == self.done + 1)

    def _write_manifest(
        self, job: JobRecord, record: CommitCheckpoint
    ) -> Generator[Wait, Any, str]:
        parts = tuple(part for worker in sorted(record.parts) for part in record.parts[worker])
        key = f"{job.name}/manifests/{record.attempt.step}.{record.attempt.number}.{self.term}"
        yield self.pause_for(self.kernel.between(0.005, 0.05))
        self.world.blobs.put(key, Manifest(record.attempt.step, parts))
        return key

    def _remove_blobs(self, job: JobRecord, step: int) -> None:
        """The record is gone, so nobody needs what only it named."""
        for checkpoint in job.checkpoints:
            if checkpoint.step == step:
                self.world.collect(checkpoint.manifest)

    # --- what it sees ---------------------------------------------------------------------------

    def _reader(self, tree: Tree) -> ReadPlane:
        plane, seen = self.world.plane, ReadPlane()
        for name in tree.nodes[JOBS].child_names():
            node = tree.nodes[f"{JOBS}/{name}"]
            seen.jobs[name] = plane.value(node.data)
            seen.versions[name] = node.version
        for name in sorted(tree.nodes[NODES].child_names()):
            seen.nodes[name] = tree.nodes[f"{NODES}/{name}"].owner
        seen.draining = plane.value(tree.nodes["/holdfast/draining"].data)
        return seen

    def _know_nodes(self, seen: ReadPlane) -> None:
        """What a node said in a session that is over says nothing about the next one."""
        for node in list(self.reports):
            if not self._is_of(seen, node):
                del self.reports[node]

    def _is_of(self, seen: ReadPlane, node: str) -> bool:
        """Whether the node's report is of the session that it has, or of one that we do not know
        of yet."""
        return node in seen.nodes and int(self._sessions[node], 16) >= seen.nodes[node]

    def _has_reported(self, seen: ReadPlane, node: str) -> bool:
        return node in self.reports and int(self._sessions[node], 16) == seen.nodes[node]

    def welcome(
        self, agent: Agent, stream: Stream, term: int, session: str, mark: tuple[int, ...]
    ) -> None:
        """An agent introduces itself; who does not lead does not answer."""
        node = agent.host.name
        if term != self.term:
            self.world.network.send(self.name, agent, node, lambda: agent.loop.enter(stream.cut))
            return
        self._streams[node] = self._streams.get(node, 0) + 1
        self.world.network.send(
            self.name, agent, node, lambda: agent.loop.enter(stream.put, Welcome(term))
        )

    def receive_report(
        self, term: int, facts: NodeFacts, session: str, mark: tuple[int, ...]
    ) -> None:
        """An agent's snapshot; one that was overtaken is ignored, and one that comes by a stream of
        another term: that stream was cut when the term ended."""
        if term == self.term and self._marks.get(facts.node, (0,)) < mark:
            self._marks[facts.node] = mark
            self._sessions[facts.node] = session
            if self.reports.get(facts.node) != facts:
                self.reports[facts.node] = facts
                self._fresh = True
                self.resume()

    def receive_refusal(self, node: str, term: int) -> None:
        """An agent has refused us: it knows a later term."""
        self.tell("is refused by", node, "which knows term", term)
        self.world.happened["refused"] += 1
        self.stale = True
        self.resume()


_GONE: Final = "gone"


def _together(records: list[Record]) -> Iterator[list[Record]]:
    """The records of a job that go into one transaction; a commit goes alone, as it really does."""
    group: list[Record] = []
    for record in records:
        if isinstance(record, CommitCheckpoint):
            if group:
                yield group
            yield [record]
            group = []
        else:
            group.append(record)
    if group:
        yield group


def _version(tree: Tree, path: str) -> int | str:
    node = tree.find(path)
    return _GONE if node is None else node.version


def _concerns_a_leader(event: TreeEvent) -> bool:
    return not event.path.startswith("/holdfast/leader")
