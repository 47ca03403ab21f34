"""Members in one process, step by step: what is true after each meeting. All parts are real."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from holdfast.train.members.member import ViewMember, WorkerLeft
from holdfast.train.states.state import StateEntry, TrainingState
from holdfast.wire.errors import PeerLost
from holdfast.wire.orders import GiveSettings, GiveView, View
from holdfast.worker.agent_client import AgentClient
from tests.faults.agent_end import AgentEnd
from tests.servers import free_port
from tests.unit.train.meshes import JOB, Thread


class Number:
    """A state that is one number."""

    def __init__(self) -> None:
        self.value: int | None = None
        self.adopted = 0

    def fresh(self) -> None:
        self.value = 100

    def state(self) -> TrainingState:
        assert self.value is not None
        return TrainingState.of(
            0, [StateEntry.of("value", "I64", (), self.value.to_bytes(8, "little"))]
        )

    def adopt(self, state: TrainingState) -> None:
        self.value = int.from_bytes(state["value"].data, "little")
        self.adopted += 1


class Cast:
    """Some members, each with the agent's end of its connection."""

    def __init__(self, folder: Path, count: int) -> None:
        self.ends = [AgentEnd(folder / str(number)) for number in range(count)]
        self.ports = [free_port() for _ in range(count)]
        self.numbers = [Number() for _ in range(count)]
        self.members = []
        for number in range(count):
            agent = AgentClient(folder / str(number), JOB, number, (self.ports[number],))
            self.members.append(ViewMember(agent, self.numbers[number], None))
        self.settings: list[tuple[str, str, int]] = []
        self.view = 0

    def give(self, *workers: int, restore: int | None = None, to: tuple[int, ...] = ()) -> None:
        """The next view: these workers, one lane each."""
        self.view += 1
        lanes = {worker: (place,) for place, worker in enumerate(workers)}
        addresses = {worker: f"127.0.0.1:{self.ports[worker]}" for worker in workers}
        view = View(self.view, lanes, restore, "", addresses, len(self.settings))
        for worker in to or range(len(self.ends)):
            self.ends[worker].tell(GiveSettings("n", "job", worker, tuple(self.settings)))
            self.ends[worker].tell(GiveView("n", "job", worker, view))

    def all(self, what: str, *workers: int) -> list[object]:
        """Everyone does it at the same time."""
        threads = [Thread(partial(getattr(self.members[worker], what))) for worker in workers]
        return [thread.result() for thread in threads]

    def close(self) -> None:
        for member, end in zip(self.members, self.ends, strict=True):
            member.close()
            end.close()


@contextmanager
def cast(folder: Path, count: int) -> Iterator[Cast]:
    made = Cast(folder, count)
    try:
        yield made
    finally:
        made.close()


def complete(cast: Cast, worker: int, value: int) -> bool:
    cast.numbers[worker].value = value
    return cast.members[worker].boundary()


def test_all_begin_at_step_zero_with_the_settings_of_the_job(tmp_path: Path) -> None:
    with cast(tmp_path, 2) as stage:
        stage.settings = [("lr", "0.1", 0)]
        stage.give(0, 1, restore=0)
        stage.all("join", 0, 1)
        for member, number in zip(stage.members, stage.numbers, strict=True):
            assert (member.step, number.value) == (0, 100)
            assert member.settings == {"lr": "0.1"}
            assert member.mesh.peers == (1 - member.mesh.worker,)


def test_who_is_behind_takes_the_state_and_drops_its_sums_and_nobody_else_does(
    tmp_path: Path,
) -> None:
    with cast(tmp_path, 3) as stage:
        stage.give(0, 1, 2, restore=0)
        stage.all("join", 0, 1, 2)
        for _ in range(2):  # the first steps are compared; the third is not
            stage.all("boundary", 0, 1, 2)
        complete(stage, 1, 111)  # only this one had the whole sum when the mesh broke
        stage.members[0].mesh.close()
        for member in (stage.members[1], stage.members[2]):
            with pytest.raises(PeerLost):
                member.mesh.recv(0)
        assert stage.all("renew", 0, 1, 2) == [True, False, True]
        assert [member.step for member in stage.members] == [3, 3, 3]
        assert [number.value for number in stage.numbers] == [111, 111, 111]
        assert [number.adopted for number in stage.numbers] == [1, 0, 1]


def test_sums_stay_valid_when_the_state_and_its_settings_stay(tmp_path: Path) -> None:
    with cast(tmp_path, 3) as stage:
        stage.give(0, 1, 2, restore=0)
        stage.all("join", 0, 1, 2)
        stage.give(0, 2, to=(0, 2))
        stage.members[1].close()
        assert stage.all("renew", 0, 2) == [False, False]
        assert [stage.members[worker].lanes for worker in (0, 2)] == [(0,), (1,)]
        assert stage.members[0].view.number == 2


def test_sums_are_dropped_when_a_setting_changes_for_the_step_under_way(tmp_path: Path) -> None:
    with cast(tmp_path, 2) as stage:
        stage.give(0, 1, restore=0)
        stage.all("join", 0, 1)
        stage.settings = [("lr", "1", 5)]
        stage.give(0, 1)
        assert stage.all("renew", 0, 1) == [False, False], "it is for a later step"
        stage.settings.append(("lr", "2", 0))
        stage.give(0, 1)
        assert stage.all("renew", 0, 1) == [True, True]
        assert [member.settings for member in stage.members] == [{"lr": "2"}, {"lr": "2"}]


def test_a_view_with_all_members_waits_for_the_boundary_and_one_without_some_does_not(
    tmp_path: Path,
) -> None:
    with cast(tmp_path, 3) as stage:
        stage.give(0, 1, restore=0, to=(0, 1))
        stage.all("join", 0, 1)
        mesh = stage.members[0].mesh
        stage.give(0, 1, 2)  # one more
        joining = Thread(stage.members[2].join)
        joining.join(0.5)
        assert joining.is_alive() and mesh.broken is None
        boundaries = [Thread(partial(complete, stage, worker, 7)) for worker in (0, 1)]
        assert [thread.result() for thread in boundaries] == [False, False]
        joining.result()
        assert stage.numbers[2].value == 7 and stage.members[2].step == 1
        mesh = stage.members[0].mesh
        waiting = Thread(lambda: mesh.recv(2))
        stage.give(0, 1)  # without one who has not died
        with pytest.raises(PeerLost, match=r"without workers \[2\]|worker 2 is not there"):
            waiting.result()
        with pytest.raises(WorkerLeft) as left:
            stage.members[2].renew()
        assert left.value.code == 0 and stage.ends[2].word == "left"


def test_a_step_may_be_counted_before_its_boundary(tmp_path: Path) -> None:
    with cast(tmp_path, 1) as stage:
        stage.give(0, restore=0)
        stage.all("join", 0)
        member = stage.members[0]
        member.count()
        assert (member.step, member.unsettled) == (1, True)
        member.boundary()
        assert (member.step, member.unsettled) == (1, False)
        member.boundary()
        assert member.step == 2
