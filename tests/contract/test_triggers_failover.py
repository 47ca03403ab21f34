"""Coordinators as processes, killed with SIGKILL between deciding and starting, while a start is on
its way, and after it: each record lies in exactly one started job's range."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count, pairwise
from pathlib import Path

import pytest

from holdfast import topics
from holdfast.control.decide.facts import JobRecord
from holdfast.control.decide.spec import JobSpec, Trigger
from holdfast.control.store.plane import ControlPlane
from holdfast.coordination import Session
from tests.contract.field import Field, Process
from tests.contract.planes import Plane
from tests.servers.broker import BrokerServer
from tests.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.parametrize(
    "plane", ["embedded", pytest.param("ensemble", marks=pytest.mark.engines)], indirect=True
)

SEED = 20_306
SHORT_S = 1.0
KILLS = 4
RECORDS_MAX = 500
SPEC = JobSpec("etl", ("python", "etl.py"), on=Trigger("orders", every_records=10, at_once=50))


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerServer]:
    with BrokerServer(tmp_path / "broker") as server:
        yield server


@pytest.fixture
def start(
    plane: Plane, session: Session, tmp_path: Path, broker: BrokerServer
) -> Iterator[Callable[[str], Process]]:
    numbers = count(1)
    control = ControlPlane(session)
    with ExitStack() as stack:
        field = stack.enter_context(Field(tmp_path, control, ("a", "b"), steps=5))

        def begin(fault: str = "") -> Process:
            address = plane.address(SHORT_S)
            name, where = f"c{next(numbers)}", f"kafka://{broker.hosts}"
            return stack.enter_context(Process(address, field, name, fault, where))

        yield begin


def started(control: ControlPlane) -> list[JobRecord]:
    return [job for job in control.jobs().values() if job.spec.triggered is not None]


def test_leaders_killed_between_deciding_and_starting_start_each_range_once(
    session: Session, start: Callable[[str], Process], broker: BrokerServer
) -> None:
    print(f"seed {SEED}")
    chance, control = random.Random(SEED), ControlPlane(session)
    kills, running = 0, list[Process]()
    with topics.connect(f"kafka://{broker.hosts}") as cluster:
        cluster.admin.create("orders", partitions=3)
        control.submit(SPEC)
        producer, sent = cluster.producer(codec=topics.JSON), 0

        def over() -> bool:
            nonlocal kills, sent
            for process in [each for each in running if each.code is not None]:
                running.remove(process)
                kills += process.code == -9
                assert process.code == -9, "".join(process.log)
            if kills >= KILLS and not running:
                running.append(start(""))
            while len(running) < 2 and kills < KILLS:
                how = chance.choice(["kill after", "kill during", "kill during"])
                running.append(start(f"{how} {chance.choice([1, 1, 2])}"))
            if kills < KILLS and sent < RECORDS_MAX:
                for future in [producer.send("orders", sent + n) for n in range(10)]:
                    future.result(PATIENCE_S)
                sent += 10
            given = [job.spec.triggered for job in started(control)]
            return kills >= KILLS and sum(each.count for each in given if each) >= sent

        eventually(over, "every record has its job", timeout_s=4 * PATIENCE_S)
    spans: dict[int, list[tuple[int, int]]] = {}
    for job in started(control):
        assert job.spec.triggered is not None
        for each in job.spec.triggered.ranges:
            spans.setdefault(each.partition, []).append((each.first, each.end))
    for of_partition in spans.values():
        of_partition.sort()
        assert of_partition[0][0] == 0
        assert all(one[1] == other[0] for one, other in pairwise(of_partition)), of_partition
    state = control.job("etl").trigger
    assert state is not None and sum(state.positions) == sent
    assert state.started == len(started(control)) == sent // 10
