"""Ports that strangers hold: the worker gets others, and everybody hears the true ones."""

from __future__ import annotations

from dataclasses import replace

from holdfast.agent.events import NeverStarted, PortsTaken, Report, StartProcess
from holdfast.agent.machine import PORT_MOVES_MAX
from holdfast.wire.limits import WORKER_PORT_FIRST
from holdfast.wire.reports import ExitKind
from tests.unit.agent.driving import KEY, MACHINE, Driven, start, stop


def port(agent: Driven, worker: int = 1) -> int:
    return int(agent.known(worker).address.rpartition(":")[2])


def test_a_worker_whose_port_is_taken_is_started_with_others_and_these_are_reported() -> None:
    agent = Driven()
    agent.order(start())
    first = port(agent)
    started, report = agent.handle(PortsTaken(KEY, (first,)))
    assert isinstance(started, StartProcess)
    assert report == Report()
    assert first not in started.slots.ports
    assert port(agent) == started.slots.ports[0]
    for again in (agent.restarted(), Driven(list(agent.machine.entries()))):
        (restarted,) = again.handle(NeverStarted(KEY))
        assert restarted == started
        assert port(again) == port(agent)


def test_the_others_never_get_the_ports_that_it_moved_to() -> None:
    agent = Driven()
    agent.order(start(1))
    agent.handle(PortsTaken(KEY, (WORKER_PORT_FIRST, WORKER_PORT_FIRST + 1)))
    ports = {port(agent)}
    for worker in (2, 3, 4):
        agent.order(start(worker))
        ports.add(port(agent, worker))
    assert len(ports) == 4
    agent.machine.validate()


def test_a_worker_that_finds_no_port_is_given_up_with_the_reason() -> None:
    agent = Driven()
    agent.order(start())
    for _ in range(PORT_MOVES_MAX):
        assert len(agent.handle(PortsTaken(KEY, (port(agent),)))) == 2
    agent.handle(PortsTaken(KEY, (port(agent),)))
    end = agent.known().exit
    assert end is not None
    assert end.kind is ExitKind.ERROR
    assert "strangers hold its ports" in end.detail


def test_a_machine_without_other_ports_gives_the_worker_up() -> None:
    few = replace(MACHINE, port_last=MACHINE.port_first + 1)
    agent = Driven(machine=few)
    agent.order(start())
    agent.handle(PortsTaken(KEY, (few.port_first,)))
    assert agent.exit_kind() is ExitKind.ERROR


def test_a_worker_that_was_stopped_meanwhile_is_not_started_again() -> None:
    agent = Driven()
    agent.order(start())
    agent.order(stop())
    actions = agent.handle(PortsTaken(KEY, (port(agent),)))
    assert not any(isinstance(action, StartProcess) for action in actions)
    assert agent.exit_kind() is ExitKind.STOPPED
