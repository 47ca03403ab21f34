"""Sums over NCCL, on one GPU: each member says that it is on another machine (`NCCL_HOSTID`)."""

from __future__ import annotations

import mmap
import os
import signal
import struct
import time
from functools import partial

import pytest
import torch

from holdfast.train.members.mesh import Mesh
from holdfast.train.sums.cuda_memory import CudaMemory
from holdfast.train.sums.exchange_plan import Way
from holdfast.train.sums.gradients import GradientSums
from holdfast.train.sums.nccl import nccl_version
from holdfast.train.sums.over_levels import OverLevels
from holdfast.wire.errors import PeerLost
from tests.gpu.test_cuda_exchange import in_processes
from tests.unit.train.meshes import meshes
from tests.unit.train.test_exchange_plan import dealt
from tests.unit.train_torch.test_shared_memory import Child, Worker, let_go, only, right

LANES = 8
RECOVERY_S_MAX = 1.0


class Small(CudaMemory):
    stage_bytes, block_bytes = 256, 64


@pytest.fixture(autouse=True)
def _forks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Meshes are closed in whatever is forked: here these processes are members themselves."""
    monkeypatch.setattr(Mesh, "_forked", lambda _: None)


def nccl_worker(host: str) -> Worker:
    """On a machine of this name, as NCCL and we take it."""
    only_sockets = {"SOCKET_IFNAME": "lo", "P2P_DISABLE": "1", "SHM_DISABLE": "1"}
    os.environ["NCCL_HOSTID"] = host
    os.environ.update({f"NCCL_{name}": value for name, value in only_sockets.items()})
    device = torch.device("cuda", 0)
    torch.cuda.set_device(device)
    return Worker(LANES, Small(device, nccl=nccl_version()), device)


def until_over_nccl(worker: Worker) -> int:
    """Steps until the communicator is there; the next step's number."""
    for step in range(3_000):
        assert worker.step(step) == right(LANES, step)
        assert worker.exchange is not None
        if isinstance(worker.exchange._transport, OverLevels):
            return step + 1
        assert worker.way is Way.NCCL, worker.exchange.choice
        time.sleep(0.01)  # pause: the communicator is made meanwhile
    raise AssertionError("there is no communicator")


@pytest.mark.parametrize("hosts", ["ab", "abc", "abcd", "aabb", "abb"])
def test_members_on_several_machines_have_the_sum_of_the_tree(hosts: str) -> None:
    held = dealt(len(hosts), LANES, seed=len(hosts))
    with meshes(len(hosts)) as made:

        def member(me: int) -> None:
            mesh, worker = only(made, me), nccl_worker(hosts[me])
            worker.connect(mesh, held)
            first = until_over_nccl(worker)
            for step in range(first, first + 5):
                assert worker.step(step) == right(LANES, step)
            # pause: nobody closes before all have their sums
            time.sleep(0.5)
            mesh.close()
            worker.close()

        assert in_processes(len(hosts), member) == [0] * len(hosts)


@pytest.mark.parametrize("stage", [0, 2])
def test_a_worker_killed_in_the_middle_costs_the_others_neither_bits_nor_a_second(
    stage: int,
) -> None:
    victim, held, later = 2, dealt(3, LANES, seed=4), dealt(2, LANES, seed=5)
    clock = mmap.mmap(-1, 4096)  # when it was killed
    with meshes(3) as first, meshes(2) as second:

        def member(me: int) -> None:
            mesh, next_mesh = only(first, me), only(second, me) if me < 2 else None
            for each in second if me == victim else ():
                let_go(each)
            worker = nccl_worker("abc"[me])
            worker.connect(mesh, held)
            step = until_over_nccl(worker)
            if me == victim:
                killed_at(stage, clock)
            try:
                worker.step(step)
                raise AssertionError("a step is complete without a member")
            except PeerLost:
                pass
            assert next_mesh is not None
            worker.close()
            worker.connect(next_mesh, later)
            assert worker.step(step) == right(LANES, step)
            took_s = time.monotonic() - struct.unpack_from("d", clock)[0]
            assert took_s < RECOVERY_S_MAX, took_s
            print(f"worker {me}: the next step was complete {took_s:.3f} s after the kill")
            last = step + 1
            for number in range(last, last + 3):
                assert worker.step(number) == right(LANES, number)
            time.sleep(0.5)  # pause: nobody closes before all have their sums
            next_mesh.close()
            worker.close()

        children = [Child(partial(member, each)) for each in range(3)]
        for mesh in (*first, *second):
            let_go(mesh)
        assert [child.wait() for child in children] == [0, 0, -signal.SIGKILL]


def killed_at(stage: int, clock: mmap.mmap) -> None:
    """This process ends where it has met its group in this stage, and before it has sent."""
    before = OverLevels._found

    def fatal(self: OverLevels, number: int, sums: GradientSums) -> object:
        found = before(self, number, sums)
        if number == stage:
            struct.pack_into("d", clock, 0, time.monotonic())
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    OverLevels._found = fatal  # type: ignore[method-assign, assignment]
