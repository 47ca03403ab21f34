"""Exchanges over real meshes, all members in this process."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from holdfast.train.members.conversation import STEP, Conversation
from holdfast.train.members.mesh import Mesh
from holdfast.train.states.tracked import Tracked
from holdfast.train.sums.step_records import LaneRecord
from holdfast.train.sums.stepping import Stepping
from holdfast.wire.orders import View
from tests.unit.train.meshes import Thread, meshes

LANES = 2


class Seat:
    """A member as far as a step needs one: a place in a mesh."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self.lanes: tuple[int, ...] = (mesh.worker,)
        self.view = View(1, {worker: (worker,) for worker in range(LANES)})
        self.digest: str | None = None
        self.is_alone = False


class Worker:
    def __init__(self, mesh: Mesh) -> None:
        self.seat, self.model = Seat(mesh), nn.Linear(3, 2)
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.fill_(1.0)
        tracked = Tracked()
        tracked.add("model", self.model)
        member: Any = self.seat
        self.stepping = Stepping(tracked, LANES, member)
        self.talk = Conversation(mesh)

    def step(self, number: int, metrics: int = 0) -> list[float]:
        """Its lane of a step, the sum, and the mean gradient. `metrics`: how much it has to say."""
        lane = self.seat.mesh.worker
        self.stepping.connect(self.talk)
        record = self.stepping.records[lane] = LaneRecord(count=1)
        record.values = {f"number {each}": float(lane) for each in range(metrics)}
        loss = self.model(torch.full((1, 3), lane + 1.0)).sum()
        self.stepping.backward(lane, loss, final=True, step=number, notes=b"")
        found = self.stepping.complete(number, b"")
        assert [len(each.values) for each in found.lanes.values()] == [metrics] * LANES
        result = torch.cat([each.flatten() for each in self.stepping.gradients(1.0)])
        self.stepping.clear()
        return [float(each) for each in result]


@pytest.fixture
def pair() -> Iterator[list[Worker]]:
    with meshes(LANES) as made, ExitStack() as stack:
        workers = [Worker(mesh) for mesh in made]
        for worker in workers:
            stack.callback(worker.stepping.close)
        for mesh in made:
            stack.callback(mesh.close)
        yield workers


def together(workers: Sequence[Worker], number: int, metrics: int = 0) -> list[list[float]]:
    running = [Thread(partial(each.step, number, metrics)) for each in workers]
    return [one.result() for one in running]


def exchanges() -> int:
    return sum(thread.name == "holdfast-exchange" for thread in threading.enumerate())


def test_a_mesh_has_one_exchange_however_many_steps_are_made_over_it(pair: list[Worker]) -> None:
    for number in range(10):
        first, second = together(pair, number)
        assert first == second == [3.0] * 6 + [2.0] * 2
    assert exchanges() == LANES


def test_the_exchange_of_a_mesh_that_is_over_ends_with_the_next_connection(
    pair: list[Worker],
) -> None:
    together(pair, 0)
    with meshes(LANES) as renewed:
        for worker, mesh in zip(pair, renewed, strict=True):
            worker.seat.mesh.close()
            worker.seat.mesh, worker.talk = mesh, Conversation(mesh)
        assert together(pair, 1) == [[3.0] * 6 + [2.0] * 2] * 2
        assert exchanges() == LANES
        for worker in pair:
            worker.seat.mesh.close()
            worker.stepping.disconnect()
    assert exchanges() == 0


@pytest.mark.parametrize("metrics", [0, 1, 40, 4_000])
def test_whatever_a_member_has_to_say_of_a_step_is_heard_whole(
    pair: list[Worker], metrics: int
) -> None:
    for number in range(3):
        together(pair, number, metrics)


def test_members_that_stand_at_different_places_are_level_at_the_first_that_all_reach() -> None:
    with meshes(3) as made:
        talks = [Conversation(mesh) for mesh in made]
        behind = [Thread(partial(each.lead, (4, 0), b"asks")) for each in talks[:2]]
        ahead = Thread(lambda: talks[2].lead((4, STEP), b"knows"))
        for one in behind:
            assert one.result()[2] == ((4, STEP), b"knows")
        assert not any(talk.level for talk in talks)
        reached = [Thread(partial(each.lead, (4, STEP), b"")) for each in talks[:2]]
        for one in [*reached, ahead]:
            assert {place for place, _ in one.result().values()} == {(4, STEP)}
        assert all(talk.level for talk in talks)
