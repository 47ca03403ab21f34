"""GPUs that several workers share."""

from __future__ import annotations

from dataclasses import replace

from holdfast.agent.events import Ending, Forgotten, Key, OrderReceived, StartProcess
from holdfast.agent.journal import decode, encode
from holdfast.agent.slots import Machine
from holdfast.wire.orders import Forget
from holdfast.wire.resources import Resources
from tests.unit.agent.driving import MACHINE, NODE, Driven, start

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


FAULT = """Traceback (most recent call last):
  File "train.py", line 3, in <module>
holdfast.wire.errors.GpuFault: GPU 0 has failed: its memory has an uncorrectable error (ECC)
why: uncorrectable ECC error; Xid 48: DBE
"""
FULL = """Traceback (most recent call last):
  File "train.py", line 3, in <module>
holdfast.train.gpu_faults.GpuMemoryFull: GPU 0 is out of memory
"""


def fails(agent: Driven, worker: int, said: str = FAULT) -> None:
    agent.end(Key("job", worker), Ending(code=1, stderr_tail=said))


def test_a_gpu_that_has_ended_two_workers_is_not_given_out_any_more() -> None:
    agent = Driven(machine=SHARED)
    assert [given(agent, worker) for worker in (1, 2, 3)] == [(0,), (3,), (0,)]
    fails(agent, 1)
    assert agent.machine.snapshot().capacity.gpu == 4
    assert given(agent, 4) == (0,)
    fails(agent, 4)
    # Worker 3 goes on where it is; nobody else comes.
    assert agent.machine.snapshot().capacity.gpu == 3
    assert [given(agent, worker) for worker in (5, 6)] == [(3,), None]
    agent.end(Key("job", 3))
    assert agent.machine.snapshot().capacity.gpu == 2
    agent.machine.validate()


def test_the_faults_of_a_gpu_are_known_to_the_next_agent_also_of_workers_that_are_forgotten() -> (
    None
):
    agent = Driven(machine=SHARED)
    for worker in (1, 2):
        assert given(agent, worker, gpus=1) is not None
        fails(agent, worker)
        agent.handle(OrderReceived(1, Forget(NODE, "job", worker)))
    assert sum(isinstance(entry, Forgotten) for entry in agent.entries) == 2
    written = [decode(encode(entry)) for entry in agent.machine.entries()]
    for entries in (agent.entries, [entry for entry in written if entry is not None]):
        again = Driven(entries, machine=SHARED)
        assert again.machine.snapshot().capacity.gpu == 2
        assert given(again, 7) == (3,)


def test_what_a_program_brings_upon_itself_is_no_fault_of_its_gpu() -> None:
    agent = Driven(machine=SHARED)
    for worker in range(1, 5):
        assert given(agent, worker) == (0,)
        fails(agent, worker, FULL)
    assert agent.machine.snapshot().capacity.gpu == 4
