"""GPUs that several workers share."""

from __future__ import annotations

from dataclasses import replace

from holdfast.agent.events import Key, StartProcess
from holdfast.agent.slots import Machine
from holdfast.wire.room import Resources
from tests.unit.agent.driving import MACHINE, Driven, start

SHARED = Machine(Resources(16.0, 1 << 34, 4), cpus=(), gpus=(0, 3), gpu_share=2)


def given(agent: Driven, worker: int, gpus: int = 1) -> tuple[int, ...] | None:
    """The devices of a new worker; None: it was refused."""
    answer, actions = agent.order(start(worker, resources=Resources(1.0, 0, gpus)))
    found = [action.slots.gpus for action in actions if isinstance(action, StartProcess)]
    assert answer.accepted == bool(found)
    return found[0] if found else None


def test_workers_are_spread_over_devices_and_each_device_has_no_more_than_its_share() -> None:
    agent = Driven(machine=SHARED)
    assert [given(agent, worker) for worker in (1, 2, 3, 4, 5)] == [(0,), (3,), (0,), (3,), None]


def test_a_worker_that_wants_two_gets_two_devices_as_long_as_there_are_two() -> None:
    agent = Driven(machine=SHARED)
    assert given(agent, 1, gpus=2) == (0, 3)
    one = Driven(machine=replace(SHARED, gpus=(0,), capacity=Resources(16.0, 1 << 34, 2)))
    assert given(one, 1, gpus=2) == (0, 0)


def test_the_share_of_a_worker_that_has_gone_is_given_again() -> None:
    agent = Driven(machine=SHARED)
    for worker in (1, 2, 3, 4):
        given(agent, worker)
    agent.end(Key("job", 2))
    assert given(agent, 5) == (3,)


def test_an_agent_that_may_share_less_keeps_the_workers_that_it_finds_and_adds_none() -> None:
    agent = Driven(machine=SHARED)
    for worker in (1, 2, 3):
        agent.started(worker, resources=Resources(1.0, 0, 1))
    again = Driven(agent.entries, machine=MACHINE)
    again.machine.validate()
    assert given(again, 4) is None
