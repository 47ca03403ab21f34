"""What the agent's machine never promises: more room, ports, names or numbers than there are."""

from __future__ import annotations

import pytest

from holdfast.agent.events import (
    Forgotten,
    Key,
    Recovered,
    StartProcess,
    TermSeen,
)
from holdfast.agent.slots import Machine
from holdfast.agent.state import FORGOTTEN_KEPT_MAX
from holdfast.wire.limits import AGENT_WORKERS_MAX
from holdfast.wire.orders import (
    Forget,
    StartWorker,
)
from holdfast.wire.resources import Resources
from tests.unit.agent.driving import KEY, NODE, Driven, start


def test_no_more_is_promised_than_the_machine_has() -> None:
    agent = Driven()
    agent.order(start(1, resources=Resources(6.0)))
    answer, actions = agent.order(start(2, resources=Resources(3.0)))
    assert not answer.accepted
    assert "cpu 2" in answer.reason
    assert actions == []
    agent.end(KEY)
    assert agent.order(start(2, resources=Resources(3.0)))[0].accepted


def test_devices_and_ports_belong_to_one_living_worker_each() -> None:
    agent = Driven()
    given = []
    for worker in (1, 2):
        _, actions = agent.order(start(worker, resources=Resources(2.0, 0, 1)))
        given += [action.slots for action in actions if isinstance(action, StartProcess)]
    assert [slots.gpus for slots in given] == [(0,), (1,)]
    assert [slots.cpus for slots in given] == [(0, 1), (2, 3)]
    assert not set(given[0].ports) & set(given[1].ports)
    assert not agent.order(start(3, resources=Resources(1.0, 0, 1)))[0].accepted


def test_a_machine_that_has_become_smaller_keeps_its_workers_and_takes_no_more() -> None:
    agent = Driven()
    agent.order(start(1, resources=Resources(6.0)))
    again = Driven(agent.entries, machine=Machine(Resources(2.0), cpus=(0, 1)))
    assert again.facts() is not None
    assert not again.order(start(2))[0].accepted


@pytest.mark.parametrize("job", ["", "../x", "a/b", ".hidden", "x" * 1000])
def test_a_job_whose_name_is_no_folders_name_is_refused(job: str) -> None:
    agent = Driven()
    order = StartWorker(NODE, job, 1, "", ("true",), Resources(1.0))
    assert not agent.order(order)[0].accepted


def test_the_numbers_of_workers_are_bounded() -> None:
    agent = Driven()
    for worker in range(1, AGENT_WORKERS_MAX + 1):
        agent.order(start(worker, resources=Resources()))
    assert not agent.order(start(AGENT_WORKERS_MAX + 1, resources=Resources()))[0].accepted


def test_forgotten_numbers_are_bounded_and_end_with_the_term() -> None:
    agent = Driven()
    machine = agent.machine
    for worker in range(1, FORGOTTEN_KEPT_MAX + 3):
        machine.handle(Recovered(Forgotten(Key("job", worker))), 0.0)
    assert sum(1 for _ in machine.entries()) == FORGOTTEN_KEPT_MAX
    agent.order(Forget(NODE, "job", 1), term=2)
    assert list(machine.entries()) == [TermSeen(2)]
