"""Sums over the memory of one GPU: their bits, a SIGKILL in the middle, and what is left."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from functools import partial

import pytest
import torch

from holdfast.train.members.mesh import Mesh
from holdfast.train.sums.cuda_memory import CudaMemory
from holdfast.train.sums.exchange_plan import Way
from holdfast.wire.errors import PeerLost
from tests.unit.train.meshes import meshes
from tests.unit.train.test_exchange_plan import dealt
from tests.unit.train_torch.test_shared_memory import (
    Child,
    Worker,
    killed_at_stage,
    let_go,
    only,
    right,
)

LANES = 8


class Small(CudaMemory):
    """Two buckets are a stage, and half a bucket is added at once."""

    stage_bytes, block_bytes = 256, 64


def gpu_worker() -> Worker:
    device = torch.device("cuda", 0)
    torch.cuda.set_device(device)
    return Worker(LANES, Small(device), device)


def in_processes(count: int, member: Callable[[int], None]) -> list[int]:
    """How each ends."""
    return [child.wait() for child in [Child(partial(member, each)) for each in range(count)]]


@pytest.fixture(autouse=True)
def _forks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Meshes are closed in whatever is forked: here these processes are members themselves."""
    monkeypatch.setattr(Mesh, "_forked", lambda _: None)


@pytest.mark.parametrize("members", [2, 3, 4])
def test_workers_on_one_gpu_have_the_sum_of_the_tree(members: int) -> None:
    held = dealt(members, LANES, seed=members)
    with meshes(members) as made:

        def member(me: int) -> None:
            mesh, worker = only(made, me), gpu_worker()
            worker.connect(mesh, held)
            for step in range(5):
                assert worker.step(step) == right(LANES, step)
            assert worker.exchange is not None
            assert worker.way is Way.SHARED, worker.exchange.choice
            mesh.close()
            worker.close()

        assert in_processes(members, member) == [0] * members


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_a_worker_killed_in_the_middle_costs_no_survivor_its_context(stage: int) -> None:
    victim, held, later = 2, dealt(3, LANES, seed=4), dealt(2, LANES, seed=5)
    before = sorted(os.listdir("/dev/shm"))  # noqa: PTH208
    with meshes(3) as first, meshes(2) as second:

        def member(me: int) -> None:
            mesh, next_mesh = only(first, me), only(second, me) if me < 2 else None
            for each in second if me == victim else ():
                let_go(each)
            killed_at_stage(victim, stage, step=1)
            worker = gpu_worker()
            worker.connect(mesh, held)
            assert worker.step(0) == right(LANES, 0)
            try:
                worker.step(1)
                raise AssertionError("a step is complete without a member")
            except PeerLost:
                pass
            assert next_mesh is not None
            worker.close()
            worker.connect(next_mesh, later)
            for step in range(1, 4):
                assert worker.step(step) == right(LANES, step)
            assert worker.way is Way.SHARED
            next_mesh.close()
            worker.close()

        children = [Child(partial(member, each)) for each in range(3)]
        for mesh in (*first, *second):
            let_go(mesh)
        assert [child.wait() for child in children] == [0, 0, -signal.SIGKILL]
    assert sorted(os.listdir("/dev/shm")) == before  # noqa: PTH208


def test_a_worker_on_the_cpu_takes_those_on_the_gpu_over_tcp() -> None:
    held = dealt(2, LANES, seed=1)
    with meshes(2) as made:

        def member(me: int) -> None:
            mesh, worker = only(made, me), gpu_worker() if me else Worker(LANES, None)
            worker.connect(mesh, held)
            assert worker.step(0) == right(LANES, 0)
            assert worker.way is Way.TCP
            mesh.close()
            worker.close()

        assert in_processes(2, member) == [0, 0]
