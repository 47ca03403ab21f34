"""Whatever comes, in whatever order, however often the agent dies: what must always be true."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.agent.events import (
    Disconnected,
    Ending,
    Event,
    Examined,
    Force,
    Key,
    NeverStarted,
    OrderReceived,
    PartsReport,
    ProcessAdopted,
    ProcessExited,
    ProcessStarted,
    SignalProcess,
    StartProcess,
    Timer,
    WorkerReport,
)
from holdfast.wire.orders import Forget, GiveView, View
from holdfast.wire.reports import NodeFacts, WorkerPhase
from holdfast.wire.resources import Resources
from tests.unit.agent.driving import IDENTITY, NODE, Driven, start, stop

WORKERS = st.integers(1, 3)
TERMS = st.integers(1, 3)
KEYS = WORKERS.map(lambda worker: Key("job", worker))
ENDINGS = st.sampled_from(
    [Ending(code=0, word="done"), Ending(code=1), Ending(signal=9), Ending(), Ending(fault="no")]
)
ORDERS = st.one_of(
    WORKERS.map(lambda worker: start(worker, resources=Resources(3.0, 0, 1), silence_s=20.0)),
    st.builds(stop, WORKERS, st.floats(0.0, 20.0)),
    WORKERS.map(lambda worker: Forget(NODE, "job", worker)),
    st.builds(
        lambda worker, number: GiveView(NODE, "job", worker, View(number, {worker: (0,)})),
        WORKERS,
        st.integers(1, 4),
    ),
)
EVENTS: st.SearchStrategy[Event | None] = st.one_of(
    st.builds(OrderReceived, TERMS, ORDERS),
    st.builds(ProcessExited, KEYS, ENDINGS),
    st.builds(
        WorkerReport,
        KEYS,
        st.booleans(),
        st.integers(0, 3),
        st.none() | st.integers(0, 9),
        waits=st.booleans(),
        beats=st.booleans(),
    ),
    st.builds(Disconnected, KEYS),
    st.builds(Examined, KEYS, st.booleans()),
    st.builds(PartsReport, KEYS, st.integers(1, 4)),
    st.just(Timer()),
    st.none(),  # the agent is killed and comes back
)


class Host:
    """The rim as the machine may expect it: processes exist from `StartProcess` on, once each."""

    def __init__(self) -> None:
        self.agent = Driven()
        self.starts: Counter[Key] = Counter()
        self.living: set[Key] = set()
        self.asked: set[Key] = set()

    def feed(self, event: Event) -> None:
        if isinstance(event, ProcessExited):
            if event.key not in self.living:
                return
            self.living.discard(event.key)
        for action in self.agent.handle(event):
            if isinstance(action, StartProcess):
                key = Key(action.order.job, action.order.worker)
                self.starts[key] += 1
                self.living.add(key)
                self.feed(ProcessStarted(key, IDENTITY))
            elif isinstance(action, SignalProcess) and action.force is Force.ASK:
                self.asked.add(action.key)

    def restart(self) -> None:
        self.agent = self.agent.restarted()
        for key in self.agent.machine.living():
            known = ProcessAdopted(key, IDENTITY) if key in self.living else NeverStarted(key)
            self.feed(known)


def durable(facts: NodeFacts) -> dict[int, tuple[object, ...]]:
    """What a restart must not change: steps and parts are said again by the workers."""
    return {one.worker: (one.phase, one.view, one.step is None, one.exit) for one in facts.workers}


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(EVENTS, st.floats(0.0, 15.0)), max_size=40))
def test_a_number_is_started_once_and_a_restart_changes_nothing_that_was_reported(
    story: list[tuple[Event | None, float]],
) -> None:
    host = Host()
    terms = 0
    for event, pause_s in story:
        host.agent.now_s += pause_s
        before = host.agent.machine.snapshot()
        if event is None:
            host.restart()
            assert durable(host.agent.machine.snapshot()) == durable(before)
        else:
            host.feed(event)
        machine = host.agent.machine
        machine.validate()
        assert machine.term >= terms, "the highest term never goes back"
        terms = machine.term
        assert all(count == 1 for count in host.starts.values()), host.starts
        for one in machine.snapshot().workers:
            gone = one.phase is WorkerPhase.GONE
            assert gone == (Key(one.job, one.worker) not in host.living)
            assert gone == (one.exit is not None)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(EVENTS, st.floats(0.0, 15.0)), max_size=40))
def test_the_shortest_journal_gives_the_same_state_as_the_long_one(
    story: list[tuple[Event | None, float]],
) -> None:
    host = Host()
    for event, pause_s in story:
        host.agent.now_s += pause_s
        if event is not None:
            host.feed(event)
    short = Driven(list(host.agent.machine.entries()), host.agent.now_s)
    long = host.agent.restarted()
    assert durable(short.machine.snapshot()) == durable(long.machine.snapshot())
    assert short.machine.term == long.machine.term
    assert short.machine.wake_s == long.machine.wake_s
    for worker in (1, 2, 3):
        again = Driven(short.entries), Driven(long.entries)
        answers = [each.order(start(worker), term=3)[0] for each in again]
        assert answers[0] == answers[1]
