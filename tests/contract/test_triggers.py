"""A trigger's place and the job that it starts are one write: whoever dies, is deposed or loses a
reply between deciding and starting, each record lies in exactly one job's range."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest

from holdfast.control.decide.commands import Decision, Order, SetStatus, StartJob
from holdfast.control.decide.facts import Intent, JobRecord, Phase, RecordedStatus, TopicOffsets
from holdfast.control.decide.spec import JobSpec, Trigger
from holdfast.control.decide.triggers import ENDED_KEPT, decide_triggers
from holdfast.control.store.plane import ControlPlane
from holdfast.coordination import Session
from holdfast.coordination.embedded import protocol
from holdfast.wire.errors import Conflict, Fenced, HoldfastError, Refused
from tests.contract.cutting import CuttingProxy
from tests.contract.leading import Leading
from tests.contract.planes import STEADY_S

SEED = 20_305
SPEC = JobSpec("etl", ("python", "etl.py"), on=Trigger("orders", every_records=10, at_once=1_000))


@pytest.fixture
def session(another: Callable[..., Session]) -> Session:
    """No term ends here but by what a test does."""
    return another(STEADY_S)


@pytest.fixture
def control(session: Session) -> ControlPlane:
    return ControlPlane(session)


def orders(*ends: int) -> dict[str, TopicOffsets]:
    return {"orders": TopicOffsets("i1", (0,) * len(ends), ends)}


def decided(leading: Leading, topics: dict[str, TopicOffsets]) -> list[Decision]:
    return decide_triggers(leading.ledger.refresh(), topics, 1.0)


def started(control: ControlPlane) -> list[JobRecord]:
    jobs = [job for job in control.jobs().values() if job.spec.triggered is not None]
    return sorted(jobs, key=lambda job: job.spec.triggered.number if job.spec.triggered else 0)


def check_once(control: ControlPlane) -> int:
    """How many records are in ranges; none is in two, none is left out."""
    spans = sorted(
        (each.first, each.end)
        for job in started(control)
        if job.spec.triggered is not None
        for each in job.spec.triggered.ranges
    )
    assert all(one[1] == other[0] for one, other in pairwise(spans)), spans
    state = control.job("etl").trigger
    assert state is not None
    assert state.positions == (spans[-1][1] if spans else 0,)
    return sum(end - first for first, end in spans)


def test_a_leader_deposed_between_deciding_and_starting_starts_nothing_and_the_next_one_does(
    control: ControlPlane, session: Session, another: Callable[..., Session]
) -> None:
    control.submit(SPEC)
    first = Leading(session)
    first.ledger.read()
    first.ledger.carry_out("etl", decided(first, orders(0)))
    late = decided(first, orders(30))
    assert [type(each.command) for each in late].count(StartJob) == 3
    first.leadership.resign()
    second = Leading(another(STEADY_S))
    second.ledger.read()
    with pytest.raises(Fenced):
        first.ledger.carry_out("etl", late)
    second.ledger.carry_out("etl", decided(second, orders(30)))
    with pytest.raises((Fenced, Conflict)):
        first.ledger.carry_out("etl", late)
    assert check_once(control) == 30
    assert [job.name for job in started(control)] == ["etl.1", "etl.2", "etl.3"]
    assert decided(second, orders(30)) == []
    told = control.history("etl.2")
    assert "trigger etl asked: run for 10 records of topic orders (0: 10 to 19)" in told[0].reason


def test_starts_whose_replies_are_lost_are_done_once(
    proxy: CuttingProxy, through: Session, control: ControlPlane
) -> None:
    print(f"seed {SEED}")
    chance = random.Random(SEED)
    control.submit(SPEC)
    leading = Leading(through)
    leading.ledger.read()
    end = 0
    for _ in range(8):
        end += chance.randrange(25)
        if chance.random() < 0.5:
            proxy.cut_the_next(protocol.MULTI)
        for _ in range(4):
            records = decided(leading, orders(end))
            try:
                if records:
                    leading.ledger.carry_out("etl", records)
            except (Conflict, Fenced):
                raise
            except HoldfastError:
                continue  # nobody knows: it is read again
    assert proxy.cuts > 1
    assert check_once(control) == end - end % 10


def test_somebody_elses_job_of_the_next_name_is_passed_over(
    control: ControlPlane, session: Session
) -> None:
    control.submit(SPEC)
    leading = Leading(session)
    leading.ledger.read()
    late = decided(leading, orders(10))
    control.submit(replace(SPEC, name="etl.1", on=None))
    with pytest.raises(Conflict):
        leading.ledger.carry_out("etl", late)
    leading.ledger.carry_out("etl", decided(leading, orders(10)))
    assert [job.name for job in started(control)] == ["etl.2"]
    assert check_once(control) == 10


def test_a_trigger_submitted_again_goes_on_where_it_is_by_its_new_file(
    control: ControlPlane, session: Session
) -> None:
    control.submit(SPEC)
    leading = Leading(session)
    leading.ledger.read()
    leading.ledger.carry_out("etl", decided(leading, orders(10)))
    other = replace(SPEC, command=("python", "other.py"), on=Trigger("orders", every_records=5))
    assert control.submit(other).revision == 1
    leading.ledger.read()
    for job in started(control):
        end(leading, job.name)
    leading.ledger.carry_out("etl", decided(leading, orders(18)))
    jobs = started(control)
    assert [job.spec.command[1] for job in jobs] == ["etl.py", "other.py"]
    assert check_once(control) == 15
    with pytest.raises(Conflict):
        control.submit(replace(SPEC, on=None))
    with pytest.raises(Refused):
        control.change_setting("etl", "lr", "1")
    control.set_intent("etl", Intent.STOP)
    leading.ledger.read()
    leading.ledger.carry_out("etl", decided(leading, orders(1_000)))
    assert control.job("etl").status.phase is Phase.STOPPED
    assert len(started(control)) == 2
    with pytest.raises(Conflict):
        control.submit(SPEC)


def end(leading: Leading, name: str) -> None:
    over = SetStatus(name, RecordedStatus(Phase.FAILED, "x", 1.0))
    leading.ledger.carry_out(name, [Decision(over, "x")])


def test_ended_jobs_beyond_those_kept_are_removed_and_their_names_count_on(
    control: ControlPlane, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ENDED_KEPT > 3
    monkeypatch.setattr("holdfast.control.decide.triggers.ENDED_KEPT", 3)
    control.submit(SPEC)
    leading = Leading(session)
    leading.ledger.read()
    leading.ledger.carry_out("etl", decided(leading, orders(80)))
    leading.ledger.refresh()
    for number in range(1, 8):
        end(leading, f"etl.{number}")
    records = decided(leading, orders(80))
    assert not any(isinstance(each.command, Order) for each in records)
    leading.ledger.carry_out("etl", records)
    assert [job.name for job in started(control)] == ["etl.5", "etl.6", "etl.7", "etl.8"]
    state = control.job("etl").trigger
    assert state is not None and state.forgotten == 4
    assert decided(leading, orders(80)) == []
