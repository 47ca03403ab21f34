"""What must always be true, judged from the world's truth.

Nothing here asks the code under test for its opinion. Truth is: the tree, the processes that are
alive, the disks, the blobs, and the states that an undisturbed run goes through. The numbers are
those of the design's list.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from holdfast.agent.events import Key, OrderAnswer, key_of
from holdfast.control.decide.facts import Intent, JobRecord, Phase, Placement, View
from holdfast.coordination.embedded.transactions import Multi, Outcome, SetData, WriteTransaction
from holdfast.train.members.effective import Record
from holdfast.wire.orders import Order, StartWorker
from holdfast.wire.reports import ExitKind, NodeFacts, WorkerPhase
from holdfast.wire.resources import Resources
from simulation.candidate import CANDIDATES, TERM
from simulation.coordinator import JOBS, NODES
from simulation.kernel import Violation
from simulation.plane import USERS, refused_at

if TYPE_CHECKING:
    from simulation.host import Host
    from simulation.worker import HeldState, Worker
    from simulation.world import World

LEADER = "1: only the leader of the newest term takes effect"
WHOLE = "2: a committed checkpoint can be read back whole"
FORWARD = "3: a job's state never goes back"
LANES = "4: in a view every lane is held once"
SAMPLES = "5: every sample counts once"
CAPACITY = "6: no machine is promised more than it has"
ENDS = "a job ends as its user wants, with the right result"
AGREED = "settings take effect at one step, for everyone"
KEPT = "a worker that an agent has accepted is started, or was stopped before"
ONCE = "7: a command that comes twice or late changes nothing"
TOLD = "12: what people are told is true"
# What the reason of a view says of who holds the job's state (`membership`).
_NOBODY = re.compile(r"; nobody holds the state")
_HOLDING = re.compile(r"; workers? ([\d, ]+)(?: and \d+ more)? holding the state$")


class Checks:
    """Looks at each thing that happens, as it happens."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._terms: dict[str, int] = {}  # host -> the highest term that was obeyed there
        self._ran: dict[Key, str] = {}  # where a number was started; a disk may forget it
        self._numbers: dict[str, int] = {}  # job -> the highest number that a worker had
        self._term_leaders: dict[int, bytes | None] = {}
        self._records: dict[tuple[str, int], Record] = {}  # job, view -> of its settings
        self._lost_nodes: set[Key] = set()  # workers whose node was out of the plane since
        self._committed: set[str] = set()  # jobs with a commit that its user has not given up
        self.given_up: set[str] = set()  # jobs whose user lets them begin anew
        self.jobs: dict[str, JobRecord] = {}
        self.unfinished: set[str] = set(world.settings.trainings)
        world.plane.observers.append(self._written)

    # --- the coordination plane -------------------------------------------------------------------

    def _written(self, transaction: WriteTransaction, outcome: Outcome) -> None:
        operation = transaction.operation
        if not isinstance(operation, SetData):
            self._note_lost_nodes()
        parts = operation.operations if isinstance(operation, Multi) else (operation,)
        if refused_at(outcome) is not None:
            return
        for part in parts:
            if not isinstance(part, SetData):
                continue
            if part.path == TERM:
                self._term_taken()
            elif part.path.startswith(JOBS):
                if transaction.session != USERS:
                    self._led(transaction)
                self._job_written(part)
                self._note_lost_nodes()

    def _term_taken(self) -> None:
        node = self._world.plane.tree.nodes[TERM]
        if node.version in self._term_leaders:
            raise Violation(LEADER, f"term {node.version} was taken twice")
        self._term_leaders[node.version] = node.data

    def _led(self, transaction: WriteTransaction) -> None:
        """Whoever writes, other than users, owns the candidate that the newest term names."""
        tree = self._world.plane.tree
        named = tree.nodes[TERM].data
        leader = tree.find(f"{CANDIDATES}/{(named or b'').decode()}") if named else None
        if leader is None or leader.owner != transaction.session:
            raise Violation(LEADER, f"session {transaction.session} wrote; {named!r} leads")

    def _note_lost_nodes(self) -> None:
        """A worker whose node has left the plane counts as gone, though its process may live."""
        there = self._world.plane.tree.nodes[NODES].child_names()
        if len(there) == len(self._world.hosts):
            return
        for job in self.jobs.values():
            for placement in job.placements:
                if placement.node not in there:
                    self._lost_nodes.add(Key(job.name, placement.worker))

    # --- a job's record -------------------------------------------------------------------------

    def _job_written(self, part: SetData) -> None:
        after: JobRecord = self._world.plane.value(part.data)
        before = self.jobs[after.name]
        self.jobs[after.name] = after
        self._world.news = True
        if before.status.phase.final and after.status.phase is not before.status.phase:
            raise Violation(FORWARD, f"{after.name} was {before.status.phase} and is not any more")
        if after.status.phase.final:
            self.unfinished.discard(after.name)
            self._ended_well(after)
        if after.placements != before.placements:
            self._placed(before, after)
        if after.view != before.view:
            self._viewed(before.view, after)
        if after.checkpoints != before.checkpoints:
            self._checkpointed(before, after)
        if after.waits_for_recovery and not before.waits_for_recovery:
            self._world.stranded(after.name)

    def _placed(self, before: JobRecord, after: JobRecord) -> None:
        old = {placement.worker: placement for placement in before.placements}
        new = {placement.worker: placement for placement in after.placements}
        for worker in sorted(new.keys() - old.keys()):
            if worker <= self._numbers.get(after.name, 0):
                raise Violation(ONCE, f"the number of worker {after.name}.{worker} was used before")
            self._numbers[after.name] = worker
        for worker in sorted(old.keys() - new.keys()):
            self._freed(after.name, old[worker])
        taken: dict[str, Resources] = {}
        for job in self.jobs.values():
            for placement in job.placements:
                promised = taken.get(placement.node, Resources())
                taken[placement.node] = promised + job.spec.resources
        for name, promised in taken.items():
            if not promised.fits(self._world.hosts[name].capacity):
                raise Violation(CAPACITY, f"{promised} are promised on {name}")

    def _freed(self, job: str, placement: Placement) -> None:
        key = Key(job, placement.worker)
        if key in self._world.hosts[placement.node].processes and key not in self._lost_nodes:
            raise Violation(CAPACITY, f"the room of {key} is free, but its process is alive")

    def _viewed(self, before: View | None, after: JobRecord) -> None:
        view = after.view
        if after.spec.serves:
            raise Violation(LANES, f"{after.name} serves, and has {view}")
        if view is None or view.number != (before.number if before else 0) + 1:
            raise Violation(LANES, f"{view} does not follow {before}")
        held = sorted(lane for lanes in view.lanes.values() for lane in lanes)
        if held != list(range(after.spec.lanes)):
            raise Violation(LANES, f"view {view.number} of {after.name} has the lanes {held}")
        strangers = set(view.lanes) - {placement.worker for placement in after.placements}
        if strangers:
            raise Violation(LANES, f"{sorted(strangers)} are in {view} and not placed")
        restore = view.restore_step
        if restore == 0 and after.name in self._committed - self.given_up:
            raise Violation(FORWARD, f"{view} begins anew, and nobody gave up what was committed")
        if restore and restore not in {one.step for one in after.checkpoints}:
            raise Violation(WHOLE, f"{view} begins from {restore}, which is not committed")

    def view_sent(self, job: str, view: View, reason: str) -> None:
        """A view is written, and this is what its history says of it. A worker whose node was out
        of the plane counts as gone, as its users are told."""
        nobody, holding = _NOBODY.search(reason), _HOLDING.search(reason)
        if (nobody and view.restore_step is None) or (holding and view.restore_step is not None):
            raise Violation(TOLD, f"{view} of {job} is told as {reason!r}")
        named = {int(number) for number in holding[1].split(",")} if holding else set[int]()
        for placement in self.jobs[job].placements:
            key = Key(job, placement.worker)
            process = self._world.process(key)
            if process is None or key in self._lost_nodes:
                continue
            if nobody and process.held is not None:
                raise Violation(TOLD, f"{reason!r}: but {process.name} holds {process.held}")
            if placement.worker in named and process.held is None:
                raise Violation(TOLD, f"{reason!r}: but {process.name} holds nothing")

    def _checkpointed(self, before: JobRecord, after: JobRecord) -> None:
        if after.committed_step > before.committed_step:
            self._committed.add(after.name)
            self._world.strikes.committed(after.name)
            self.given_up.discard(after.name)
        newest = before.checkpoints[-1:]
        lost = any(one.manifest in self._world.blobs.lost for one in newest)
        if after.committed_step < before.committed_step and not lost:
            raise Violation(FORWARD, f"{after.name} had committed {before.committed_step}")
        training = self._world.settings.trainings[after.name]
        for checkpoint in after.checkpoints:
            found = self._world.blobs.read_whole(checkpoint.manifest)
            if isinstance(found, str):
                raise Violation(WHOLE, f"step {checkpoint.step} of {after.name}: {found}")
            step, value, record = found
            right = training.undisturbed.state(step, record)
            if step != checkpoint.step or value != right:
                raise Violation(SAMPLES, f"step {checkpoint.step} of {after.name} holds {found}")

    # --- agents ---------------------------------------------------------------------------------

    def answered(self, host: Host, term: int, order: Order, answer: OrderAnswer) -> None:
        """An agent has obeyed an order, or refused it."""
        if not answer.accepted:
            return
        highest = self._terms.get(host.name, 0)
        if term < highest:
            raise Violation(LEADER, f"{host.name} obeyed term {term} after {highest}: {order}")
        self._terms[host.name] = term
        if not any(record["term"] >= term for record in host.disk.of_kind("term")):
            raise Violation(LEADER, f"{host.name} obeyed term {term}, which is not on its disk")

    def forgot(self, host: Host) -> None:
        """A disk has lost what was durable there. Nobody promises that the term is known then, nor
        a worker that the journal does not name any more."""
        self._terms.pop(host.name, None)
        known = {_key(record["order"]) for record in host.disk.of_kind("accepted")}
        for key in [key for key, name in self._ran.items() if name == host.name]:
            if key not in known:
                del self._ran[key]

    def starts(self, host: Host, order: StartWorker) -> None:
        """An agent is about to start a process: its journal must say so already."""
        accepted = host.disk.of_kind("accepted")
        if not any(_key(record["order"]) == key_of(order) for record in accepted):
            raise Violation(ONCE, f"{order.job}.{order.worker} starts, and no disk knows of it")

    def started(self, host: Host, key: Key) -> None:
        """A process has been started."""
        if key in self._ran:
            raise Violation(ONCE, f"{key} was started on {self._ran[key]} and on {host.name}")
        self._ran[key] = host.name
        if any(Key(*record["key"]) == key for record in host.disk.of_kind("exited")):
            raise Violation(
                CAPACITY, f"{key} starts on {host.name}, which has its end in its journal"
            )
        trainings = self._world.settings.trainings
        taken = sum((trainings[one.job].spec.resources for one in host.processes), Resources())
        if not taken.fits(host.capacity):
            raise Violation(CAPACITY, f"{sorted(map(str, host.processes))} all run on {host.name}")

    def reported(self, host: Host, facts: NodeFacts) -> None:
        """An agent's snapshot says only what is true for good."""
        for worker in facts.workers:
            key = Key(worker.job, worker.worker)
            if worker.phase is WorkerPhase.GONE and key in host.processes:
                raise Violation(CAPACITY, f"{host.name} reports {key} as gone, but it is alive")
            if worker.exit and worker.exit.kind is ExitKind.LOST and key not in self._ran:
                raise Violation(KEPT, f"{host.name} reports {key} as lost, which never ran")
            for parts in worker.parts.values():
                for part in parts:
                    if part.key not in self._world.blobs.held and not self._was_removed(part.key):
                        raise Violation(WHOLE, f"{key} reports {part.key}, which is not there")

    def _was_removed(self, key: str) -> bool:
        return key in self._world.collected

    # --- workers ----------------------------------------------------------------------------------

    def held(self, worker: Worker, before: HeldState | None, after: HeldState) -> None:
        """A worker holds another state than before."""
        if before is not None and after[:2] != before[:2] and after.step <= before.step:
            raise Violation(FORWARD, f"{worker.name} held {before.step} and now {after.step}")
        if after.value != worker.training.undisturbed.state(after.step, after.record):
            raise Violation(
                SAMPLES, f"{worker.name} holds another step {after.step} than an undisturbed run"
            )

    def met(self, worker: Worker, view: View) -> None:
        """A worker has met the others of its view: all know the same settings from the same
        steps on, and none from an earlier one than was asked for."""
        held = worker.held
        assert held is not None
        known = worker.settings[: len(held.record)]
        record = self._records.setdefault((worker.key.job, view.number), held.record)
        if record != held.record:
            raise Violation(
                AGREED, f"{worker.name} has {held.record} in view {view.number}, not {record}"
            )
        for setting, (name, value, at_step) in zip(record, known, strict=True):
            if setting[:2] != (name, value) or setting.step < at_step:
                raise Violation(AGREED, f"{record} in view {view.number}, asked for were {known}")

    def restores(self, worker: Worker, view: View, step: int) -> None:
        """A worker begins from a checkpoint: then nobody who counts may hold a later state."""
        job = self.jobs[worker.key.job]
        if job.view is None or view.number != job.view.number:
            return  # nobody counts on this view any more
        placed = {placement.worker for placement in job.placements}
        for number in sorted(placed):
            other = self._world.process(Key(job.name, number))
            if other is None or other.held is None or other.key in self._lost_nodes:
                continue
            if other.held.step > step and (other.view is None or other.view.number != view.number):
                raise Violation(
                    FORWARD, f"{worker.name} begins from {step}; {other.name} holds {other.held}"
                )

    # --- the end --------------------------------------------------------------------------------

    def ended(self) -> None:
        """All jobs have ended: nothing may be left of them but their results."""
        world = self._world
        for name, job in self.jobs.items():
            if job.placements:
                raise Violation(CAPACITY, f"{name} has ended and still has {job.placements}")
            self._ended_well(job)
        for host in world.hosts.values():
            if host.processes:
                raise Violation(CAPACITY, f"{sorted(map(str, host.processes))} run on {host.name}")
        world.plane.tree.validate()

    def serves(self, name: str, replicas: int) -> bool:
        """Whether so many processes of a service are there and ready, and are those placed."""
        placed = {placement.worker: placement for placement in self.jobs[name].placements}
        processes = [self._world.process(Key(name, worker)) for worker in placed]
        ready = [one for one in processes if one is not None and one.ready]
        leaving = any(placement.draining for placement in placed.values())
        return len(ready) == len(placed) == replicas and not leaving

    def _ended_well(self, job: JobRecord) -> None:
        phase, intent = job.status.phase, job.intent
        if phase is Phase.STOPPED and intent is Intent.STOP:
            return
        if phase is not Phase.SUCCEEDED:
            raise Violation(ENDS, f"{job.name} has {phase.value}: {job.status.reason}")
        # What is committed was compared with an undisturbed run when it was committed.
        steps = self._world.settings.trainings[job.name].steps
        if job.committed_step != steps:
            raise Violation(ENDS, f"{job.name} succeeded; of {steps} steps {job.committed_step}")


def _key(spelled: Mapping[str, Any]) -> Key:
    return Key(spelled["job"], spelled["worker"])
