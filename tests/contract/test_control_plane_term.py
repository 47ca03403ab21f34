"""One leader's ticks over a real plane: one job's trouble is not another's, and no order is sent by
one that may not act."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from holdfast.control.decide.commands import CommitCheckpoint, Decision, Order, Record
from holdfast.control.decide.facts import DesiredState, JobRecord, ObservedState, Phase
from holdfast.control.decide.records import apply_record
from holdfast.control.decide.spec import CheckpointPolicy, JobSpec, Resources
from holdfast.control.shell.coordinator import Coordinator
from holdfast.control.shell.leading import LeaderTerm
from holdfast.control.store import layout
from holdfast.control.store.ledger import Ledger
from holdfast.control.store.manifests import ManifestWriter, WriteManifest
from holdfast.control.store.plane import ControlPlane
from holdfast.coordination import Election, Session
from holdfast.system.clock import Clock, SystemClock
from holdfast.wire.errors import BugError, Fenced, Unavailable
from holdfast.wire.reports import NodeFacts
from tests.contract.planes import STEADY_S
from tests.unit.control.world import World
from tests.waiting import eventually

SPEC = JobSpec(
    "train",
    ("python", "train.py"),
    lanes=2,
    workers_max=2,
    checkpoint=CheckpointPolicy(every_steps=5, every_s=None, keep=2),
)
NODES = ("a", "b")


class Here:
    """Agents in this process that obey at once. It keeps what was ordered."""

    def __init__(self) -> None:
        self.world = World({}, {node: Resources(cpu=8.0) for node in NODES}, steps=40)
        self.orders: list[tuple[int, Decision]] = []
        self.news = threading.Event()
        self.deaf = False
        self.line = 1
        self.fails = 0
        self.terms: list[int] = []

    def begin(self, term: int) -> None:
        if self.fails:
            self.fails -= 1
            raise Unavailable("who is alive is not known")
        self.terms.append(term)

    def end(self) -> None:
        self.news.set()

    def observed(self) -> ObservedState:
        facts: dict[str, NodeFacts] = {n: self.world.machines[n].report(n) for n in NODES}
        return ObservedState(facts)

    def connection(self, node: str) -> int:
        return self.line

    def order(self, term: int, decision: Decision) -> None:
        self.orders.append((term, decision))
        assert isinstance(decision.command, Order)
        if not self.deaf:
            self.world.obey(decision.command)

    def wait(self, timeout_s: float) -> bool:
        woken = self.news.wait(timeout_s)
        self.news.clear()
        return woken

    def wake(self) -> None:
        self.news.set()

    def move(self, desired: DesiredState) -> None:
        self.world.desired = desired
        for job in desired.jobs:
            self.world.move(job)


def key(commit: CommitCheckpoint) -> str:
    return f"m/{commit.job}/{commit.attempt.step}"


class StillClock(SystemClock):
    """However long a tick takes, no order is due again."""

    def now_s(self) -> float:
        return 0.0


class Leader:
    """A term in this thread."""

    def __init__(
        self,
        session: Session,
        agents: Here,
        write: WriteManifest = key,
        clock: Clock | None = None,
    ) -> None:
        self.leadership = Election(session, layout.LEADER, "me").campaign(30)
        self.ledger = Ledger(session, self.leadership, agents.wake)
        self.manifests = ManifestWriter(write, agents.wake)
        self.agents = agents
        clock = clock or session.clock
        self.term = LeaderTerm(self.leadership, self.ledger, agents, self.manifests, clock)
        self.ledger.read()

    def ticks(self, count: int) -> None:
        for _ in range(count):
            self.term.tick()
            self.agents.move(self.ledger.desired)

    def ticks_until(self, condition: Callable[[], object], what: str) -> None:
        def ticked() -> object:
            self.ticks(1)
            return condition()

        eventually(ticked, what)


@pytest.fixture
def session(another: Callable[..., Session]) -> Session:
    """No term ends here but by what a test does."""
    return another(STEADY_S)


@pytest.fixture
def control(session: Session) -> ControlPlane:
    return ControlPlane(session)


@pytest.fixture
def agents() -> Here:
    return Here()


def phase(control: ControlPlane, job: str = "train") -> Phase:
    return control.job(job).status.phase


def test_an_order_is_sent_once_while_it_is_outstanding_and_told_once(
    control: ControlPlane, session: Session, agents: Here
) -> None:
    agents.deaf = True
    control.submit(SPEC)
    leader = Leader(session, agents, clock=StillClock())
    leader.ticks(6)
    assert [type(d.command).__name__ for _, d in agents.orders] == ["StartWorker"] * 2
    told = [entry.what for entry in control.history("train")]
    assert told.count("StartWorker") == 1, "one entry for both, and none for what is repeated"


def test_a_leader_that_may_not_act_sends_nothing_and_writes_nothing(
    control: ControlPlane, session: Session, agents: Here
) -> None:
    agents.deaf = True
    control.submit(SPEC)
    leader = Leader(session, agents, clock=StillClock())
    leader.ticks(3)
    assert len(agents.orders) == 2
    agents.line += 1
    leader.ticks(1)
    assert len(agents.orders) == 4, "on a new connection they are sent again"
    agents.line += 1
    before = control.job("train")
    leader.leadership.resign()
    leader.ticks(1)
    assert len(agents.orders) == 4
    control.submit(replace(SPEC, name="other"))
    leader.ledger.read()
    with pytest.raises(Fenced):
        leader.ticks(1)
    assert control.job("train") == before
    assert control.job("other").placements == ()


def test_nothing_is_done_to_the_workers_of_a_job_that_cannot_be_read(
    control: ControlPlane, session: Session, agents: Here
) -> None:
    control.submit(SPEC)
    leader = Leader(session, agents)
    leader.ticks_until(lambda: agents.world.alive("train"), "it has workers")
    state = session.nodes.read(layout.state_path("train"))
    assert state is not None
    session.nodes.delete(state.path)
    session.nodes.create(state.path, b'{"format":99}')
    leader.ledger.read()
    control.submit(replace(SPEC, name="other"))
    agents.orders.clear()
    leader.ticks_until(lambda: agents.world.alive("other"), "the other one runs")
    assert {d.command.job for _, d in agents.orders} == {"other"}
    assert agents.world.alive("train")


def test_a_store_that_hangs_holds_up_no_other_decision(
    control: ControlPlane, session: Session, agents: Here
) -> None:
    released = threading.Event()

    def write(commit: CommitCheckpoint) -> str:
        if commit.job == "train":
            assert released.wait(60)
        return key(commit)

    control.submit(SPEC)
    control.submit(replace(SPEC, name="other"))
    leader = Leader(session, agents, write)
    leader.ticks_until(lambda: phase(control, "other").final, "the other one ends")
    assert control.job("other").committed_step > 0
    assert control.job("train").committed_step == 0
    assert control.job("train").attempt is not None
    released.set()
    leader.ticks_until(lambda: phase(control).final, "this one too")
    assert control.job("train").checkpoints[-1].manifest.startswith("m/train/")


def test_a_history_that_cannot_be_read_keeps_no_other_job_waiting(
    control: ControlPlane, session: Session, agents: Here
) -> None:
    control.submit(SPEC)
    control.submit(replace(SPEC, name="other"))
    session.nodes.create(f"{layout.history_path('train')}/0000000000", b"not ours")
    leader = Leader(session, agents)
    leader.ticks_until(lambda: phase(control, "other").final, "the other one ends")
    assert control.job("train").placements == ()


def test_a_job_whose_record_fails_is_told_once_and_keeps_no_other_waiting(
    control: ControlPlane, session: Session, agents: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(job: JobRecord, record: Record, **rest: Any) -> JobRecord:
        if job.name == "train":
            raise BugError("a bug of ours", why="for the test")
        return apply_record(job, record, **rest)

    monkeypatch.setattr("holdfast.control.store.ledger.apply_record", fails)
    monkeypatch.setattr("holdfast.control.shell.leading.TROUBLE_S", 0.0)
    control.submit(SPEC)
    control.submit(replace(SPEC, name="other"))
    leader = Leader(session, agents)
    leader.ticks_until(lambda: phase(control, "other").final, "the other one ends")
    history = [entry for entry in control.history("train") if entry.term]
    assert [(e.what, "a bug of ours" in e.reason) for e in history] == [("Trouble", True)]
    monkeypatch.undo()
    leader.ticks_until(lambda: phase(control).final, "this one too, once it can")


def test_a_job_whose_orders_cannot_be_sent_keeps_no_other_waiting(
    control: ControlPlane, session: Session, agents: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an older version let in must not end whoever leads, and the next one, and the next."""
    obey = agents.order

    def order(term: int, decision: Decision) -> None:
        if decision.command.job == "train":
            "\udc80".encode()
        obey(term, decision)

    monkeypatch.setattr(agents, "order", order)
    control.submit(SPEC)
    control.submit(replace(SPEC, name="other"))
    leader = Leader(session, agents)
    leader.ticks_until(lambda: phase(control, "other").final, "the other one ends")
    told = [entry.reason for entry in control.history("train") if entry.what == "Trouble"]
    assert any("cannot be sent" in each and "holdfast stop train" in each for each in told)


@pytest.fixture
def running(session: Session, agents: Here) -> Iterator[tuple[threading.Thread, threading.Event]]:
    stop = threading.Event()
    coordinator = Coordinator(session, agents, key, "me")
    thread = threading.Thread(target=coordinator.run, args=(stop,), daemon=True)
    thread.start()
    yield thread, stop
    stop.set()
    thread.join(30)


def test_a_coordinator_that_cannot_begin_stands_again_and_ends_when_it_is_told(
    session: Session,
    agents: Here,
    control: ControlPlane,
    running: tuple[threading.Thread, threading.Event],
) -> None:
    thread, stop = running
    election = Election(session, layout.LEADER)
    eventually(lambda: agents.terms == [1], "it leads")
    agents.fails = 2
    (name,) = session.nodes.children(f"{layout.LEADER}/candidates")
    session.nodes.delete(f"{layout.LEADER}/candidates/{name}")
    eventually(lambda: agents.terms == [1, 4], "two terms without a beginning, then it leads again")
    stop.set()
    thread.join(30)
    assert not thread.is_alive()
    assert election.current_leader() is None
