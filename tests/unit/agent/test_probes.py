"""What an agent makes of the answers of programs: ready, not ready any more, ended for not living.

Pure: the machine alone. `test_probing` asks real programs.
"""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.agent.events import (
    Asked,
    BeginProbes,
    Connected,
    Ending,
    Examine,
    Force,
    Key,
    PortsTaken,
    Probed,
    ProcessAdopted,
    ProcessExited,
    ProcessStarted,
    Report,
    SignalProcess,
    StartProcess,
    Timer,
    WorkerReport,
)
from holdfast.agent.machine import LIVE_NOTICE_S
from holdfast.agent.record import PROGRAM_SETTLES_S
from holdfast.wire import worker_messages
from holdfast.wire.probes import Probe, ProbeKind
from holdfast.wire.reports import ExitKind, WorkerPhase
from tests.unit.agent.driving import IDENTITY, KEY, Driven, start

SERVES = {worker_messages.MODE_VARIABLE: worker_messages.SERVES}
HTTP = Probe(ProbeKind.HTTP, "http", "/", failures=3)
PORTS = {"http": 0}


def serving(agent: Driven, **more: Any) -> Key:
    return agent.started(environment=SERVES, ports=PORTS, **more)


def passes(asked: Asked = Asked.READY) -> Probed:
    return Probed(KEY, asked, passed=True)


def fails(asked: Asked = Asked.READY) -> Probed:
    return Probed(KEY, asked, passed=False, said=f"{asked.value}: refused")


def phase(agent: Driven) -> WorkerPhase:
    (facts,) = agent.machine.snapshot().workers
    return facts.phase


def test_a_program_is_ready_when_its_probe_passes_and_not_before() -> None:
    agent = Driven()
    serving(agent, ready=HTTP)
    assert agent.machine.wake_s is None, "time alone makes nobody ready who can be asked"
    agent.handle(fails())
    assert phase(agent) is WorkerPhase.STARTING
    assert agent.machine.snapshot().workers[0].trouble == "ready: refused"
    assert agent.handle(passes()) == [Report()]
    assert phase(agent) is WorkerPhase.READY
    assert agent.machine.snapshot().workers[0].trouble == ""


def test_so_many_failures_in_a_row_take_readiness_back_and_one_answer_gives_it_again() -> None:
    agent = Driven()
    serving(agent, ready=HTTP)
    agent.handle(passes())
    for _ in range(2):
        agent.handle(fails())
        agent.handle(fails())
        assert phase(agent) is WorkerPhase.READY
        agent.handle(passes())  # the row is broken
    for _ in range(3):
        agent.handle(fails())
    assert phase(agent) is WorkerPhase.STARTING
    agent.handle(passes())
    assert phase(agent) is WorkerPhase.READY


@pytest.mark.parametrize("ready", [True, False])
def test_the_next_agent_knows_whether_it_was_ready_and_goes_on_asking(ready: bool) -> None:
    agent = Driven()
    serving(agent, ready=HTTP)
    agent.handle(passes())
    for _ in range(0 if ready else 3):
        agent.handle(fails())
    again = Driven(agent.entries, now_s=5.0)
    assert phase(again) is (WorkerPhase.READY if ready else WorkerPhase.STARTING)
    actions = again.handle(ProcessAdopted(KEY, IDENTITY))
    (begun,) = [action for action in actions if isinstance(action, BeginProbes)]
    (endpoint,) = again.machine.snapshot().workers[0].endpoints.values()
    assert endpoint == f"127.0.0.1:{begun.ports['http']}"
    assert begun.order.ready == HTTP
    again.now_s = 100.0
    assert not any(isinstance(action, Examine) for action in again.handle(Timer()))


def test_a_program_that_does_not_live_is_asked_to_end_then_killed_and_the_reason_is_told() -> None:
    agent = Driven()
    serving(agent, ready=HTTP, live=Probe(ProbeKind.TCP, "http", failures=2))
    for _ in range(5):
        assert SignalProcess(KEY, Force.ASK) not in agent.handle(fails(Asked.LIVE))
    agent.handle(passes())
    assert SignalProcess(KEY, Force.ASK) in agent.handle(fails(Asked.LIVE)), "it had failed before"
    agent.now_s = LIVE_NOTICE_S
    assert agent.handle(Timer()) == [SignalProcess(KEY, Force.KILL)]
    again = Driven(agent.entries, now_s=agent.now_s)
    again.handle(ProcessExited(KEY, Ending(signal=9)))
    (facts,) = again.machine.snapshot().workers
    assert facts.exit is not None
    assert facts.exit.kind is ExitKind.HUNG
    assert "`live` probe failed 6 times in a row: live: refused" in facts.exit.detail


def test_a_program_that_is_only_asked_whether_it_lives_is_ready_with_its_first_answer() -> None:
    agent = Driven()
    serving(agent, live=HTTP)
    for _ in range(10):  # it is still starting
        agent.handle(fails(Asked.LIVE))
    assert phase(agent) is WorkerPhase.STARTING
    agent.handle(passes(Asked.LIVE))
    assert phase(agent) is WorkerPhase.READY


def test_a_program_that_nobody_asks_is_ready_when_it_has_run_for_a_moment() -> None:
    agent = Driven()
    serving(agent)
    assert agent.machine.wake_s == PROGRAM_SETTLES_S
    agent.now_s = PROGRAM_SETTLES_S
    assert agent.handle(Timer()) == [Report()]
    assert phase(agent) is WorkerPhase.READY
    assert agent.machine.wake_s is None, "and it never hangs"


def test_a_program_that_says_itself_when_it_is_ready_is_not_taken_for_it_before() -> None:
    agent = Driven()
    key = serving(agent)
    agent.now_s = PROGRAM_SETTLES_S
    agent.handle(Timer())
    agent.handle(Connected(key))  # it imports torch for ten seconds, then connects
    assert phase(agent) is WorkerPhase.STARTING
    agent.handle(WorkerReport(key, ready=True))
    assert phase(agent) is WorkerPhase.READY


def test_our_own_replicas_are_ready_when_they_say_so_however_long_they_import() -> None:
    agent = Driven()
    order = start(environment=SERVES)
    command = ("python", "-m", worker_messages.REPLICA_MODULE, "digits")
    agent.order(type(order)(order.node, "job", 1, "", command, order.resources, SERVES))
    agent.handle(ProcessStarted(KEY, IDENTITY))
    agent.now_s = 10 * PROGRAM_SETTLES_S
    agent.handle(Timer())
    assert phase(agent) is WorkerPhase.STARTING


def test_what_a_program_with_a_probe_says_of_itself_does_not_make_it_ready() -> None:
    agent = Driven()
    key = serving(agent, ready=HTTP)
    agent.handle(Connected(key))
    agent.handle(WorkerReport(key, ready=True))
    assert phase(agent) is WorkerPhase.STARTING


def test_ports_are_chosen_or_fixed_and_a_stranger_on_a_fixed_one_ends_the_worker() -> None:
    agent = Driven()
    _, actions = agent.order(start(ports={"http": 8080, "admin": 0}))
    (begun,) = [action for action in actions if isinstance(action, StartProcess)]
    own, named = begun.slots.ports[:2], begun.slots.ports[2:]
    assert named[1] == 8080, "by name: admin, then http"
    assert named[0] not in (*own, 8080)
    answer, _ = agent.order(start(2, ports={"web": 8080}))
    assert not answer.accepted, "one worker of a machine has a port"
    agent.handle(PortsTaken(KEY, (named[0],)))
    moved = agent.machine.snapshot().workers[0].endpoints
    assert moved["admin"] != f"127.0.0.1:{named[0]}"
    assert moved["http"] == "127.0.0.1:8080"
    agent.handle(PortsTaken(KEY, (8080,)))
    (facts,) = agent.machine.snapshot().workers
    assert facts.exit is not None
    assert "another program listens on port 8080 (http)" in facts.exit.detail
    assert "`ports: [admin, http]`" in facts.exit.detail


def test_a_journal_without_these_fields_is_read_as_before() -> None:
    from holdfast.agent.events import Accepted, Held, Slots, Stopping
    from holdfast.agent.journal import decode, encode

    old = encode(Accepted(start(), Slots()))
    for name in ("ports", "ready", "live"):
        del old["order"][name]
    assert decode(old) == Accepted(start(), Slots())
    held = {"kind": "held", "key": ["job", 1], "view": 2, "step": 3}
    assert decode(held) == Held(KEY, 2, 3, ready=True, linked=True)
    stopping = {"kind": "stopping", "key": ["job", 1], "kill_at_s": 2.0, "hung": True}
    assert decode(stopping) == Stopping(KEY, 2.0, hung=True)
