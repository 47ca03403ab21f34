"""Coordinators as processes: a job comes to its end whoever is killed or paused on the way."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count, pairwise
from pathlib import Path

import pytest

from holdfast.control.decide.facts import ExitKind, Intent, JobRecord, Phase
from holdfast.control.decide.spec import CheckpointPolicy, JobSpec
from holdfast.control.store import layout
from holdfast.control.store.plane import ControlPlane
from holdfast.coordination import Election, Session
from tests.contract.field import Field, Process
from tests.contract.planes import STEADY_S, Plane
from tests.waiting import eventually

# The real engine with those who are large: a test here starts dozens of coordinators.
pytestmark = pytest.mark.parametrize(
    "plane", ["embedded", pytest.param("ensemble", marks=pytest.mark.engines)], indirect=True
)

Starter = Callable[..., Process]

# No session ends but those of who is killed or paused, also on a busy machine; and where many are
# killed and no term is counted, soon after it.
SESSION_S = 5.0
SHORT_S = 1.0
SEED = 20_304
SPEC = JobSpec(
    "train",
    ("python", "train.py"),
    lanes=4,
    workers_min=1,
    workers_max=3,
    checkpoint=CheckpointPolicy(every_steps=200, every_s=None, keep=2),
)


@pytest.fixture
def control(session: Session) -> ControlPlane:
    return ControlPlane(session)


@pytest.fixture
def field(tmp_path: Path, control: ControlPlane) -> Iterator[Field]:
    with Field(tmp_path, control, ("a", "b"), steps=600) as made:
        yield made


@pytest.fixture
def start(plane: Plane, field: Field) -> Iterator[Starter]:
    """Start coordinators; all are ended after the test."""
    numbers = count(1)
    with ExitStack() as stack:

        def begin(fault: str = "", session_s: float = SESSION_S) -> Process:
            name = f"c{next(numbers)}"
            return stack.enter_context(Process(plane.address(session_s), field, name, fault))

        yield begin


def ended(control: ControlPlane) -> JobRecord | None:
    job = control.job("train")
    return job if job.status.phase.final else None


def check_story(control: ControlPlane, field: Field) -> None:
    """Nothing was done twice, and no older term wrote after a newer one."""
    assert set(field.starts.values()) == {1}
    history = [entry for entry in control.history("train") if entry.term]
    assert all(one.term <= other.term for one, other in pairwise(history))
    assert all(entry.reason for entry in history)


def test_a_job_is_placed_started_run_and_succeeds_and_its_history_says_why(
    control: ControlPlane, field: Field, start: Starter
) -> None:
    start(session_s=STEADY_S)
    control.submit(SPEC)
    job = eventually(lambda: ended(control), "it ends")
    assert job.status.phase is Phase.SUCCEEDED
    assert job.committed_step == field.world.steps
    assert len(job.checkpoints) <= 2
    assert job.placements == ()
    check_story(control, field)
    eventually(lambda: not any(m.workers for m in field.world.machines.values()), "all forgotten")
    told = [entry.what for entry in control.history("train")]
    assert told[0] == "Asked"
    for what in (
        "PlaceWorker",
        "StartWorker",
        "WriteView",
        "GiveView",
        "CommitCheckpoint",
        "UnplaceWorker",
    ):
        assert what in told, told
    assert told.index("PlaceWorker") < told.index("StartWorker") < told.index("GiveView")


def test_leaders_that_die_between_any_two_writes_leave_a_job_that_ends_well(
    control: ControlPlane, field: Field, start: Starter
) -> None:
    """Each leader lives for one or two writes; some are killed while a write is on its way."""
    print(f"seed {SEED}")
    chance = random.Random(SEED)
    control.submit(SPEC)
    kills = 0
    running: list[Process] = []

    def over() -> JobRecord | None:
        nonlocal kills
        for process in [process for process in running if process.code is not None]:
            running.remove(process)
            kills += process.code == -9
            assert process.code == -9, process.log
        while len(running) < 3:
            fault = f"{chance.choice(['kill after', 'kill during'])} {chance.choice([1, 1, 1, 2])}"
            running.append(start(fault, SHORT_S))
        return ended(control)

    job = eventually(over, "it ends", timeout_s=240)
    assert job.status.phase is Phase.SUCCEEDED
    assert kills >= 5
    assert job.committed_step == field.world.steps
    check_story(control, field)


def test_a_woken_leader_cannot_write_and_its_orders_carry_the_old_term(
    control: ControlPlane, field: Field, session: Session, start: Starter
) -> None:
    """One falls asleep before a write, the next between its check and its order."""
    field.moving = False
    control.submit(SPEC)
    election = Election(session, layout.LEADER)
    writer = start("sleep before 1")
    eventually(lambda: writer.paused, "it sleeps before its first write")
    orderer = start("sleep at order 1")
    eventually(lambda: orderer.paused, "the next one sleeps at its first order")
    last = start()
    eventually(lambda: (election.current_leader() or ("",))[0] == last.name, "a third one leads")
    field.moving = True
    eventually(lambda: field.term == 3, "its orders are obeyed")
    writer.resume()
    orderer.resume()
    eventually(lambda: field.fenced, "the first one's write is fenced")
    eventually(lambda: field.refused, "the second one's order is refused")
    assert {term for term, _ in field.refused} == {2}
    job = eventually(lambda: ended(control), "it ends")
    assert job.status.phase is Phase.SUCCEEDED
    leader = election.current_leader()
    assert leader is None or leader.term >= 3
    check_story(control, field)


def test_workers_do_not_notice_that_the_coordinator_dies_and_users_go_on_asking(
    control: ControlPlane, field: Field, session: Session, start: Starter
) -> None:
    leader = start()
    election = Election(session, layout.LEADER)
    # Which of two that start together comes first is open: the second one starts later.
    eventually(lambda: (election.current_leader() or ("",))[0] == leader.name, "it leads")
    start()
    control.submit(SPEC)
    eventually(lambda: control.job("train").committed_step, "it runs")
    before = dict(field.starts)
    leader.kill()
    killed_s = time.monotonic()
    control.change_setting("train", "lr", "0.1", 10_000)
    eventually(lambda: field.term == 2, "the standby gives orders")
    print(f"the standby's first order came {field.terms[2] - killed_s:.3f} s after the kill")
    assert field.starts == before
    eventually(
        lambda: all(w.settings == 1 for w in field.world.alive("train").values()), "all know it"
    )
    for worker in list(field.world.alive("train").values()):
        worker.end(ExitKind.SIGNAL)
    eventually(lambda: len(field.starts) > len(before), "they are replaced")
    control.set_intent("train", Intent.STOP)
    job = eventually(lambda: ended(control), "it stops")
    assert job.status.phase is Phase.STOPPED
    check_story(control, field)
