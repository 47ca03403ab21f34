"""Sums over memory that processes share: their bits, deaths in the middle, and what is left."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from holdfast.train.members.conversation import Conversation
from holdfast.train.members.mesh import Mesh
from holdfast.train.sums import exchange, exchange_plan, over_memory, tree
from holdfast.train.sums.exchange import Better, MeshExchange
from holdfast.train.sums.exchange_plan import MemberPlace, Way
from holdfast.train.sums.gradients import GradientSums, Layout, one_piece
from holdfast.train.sums.over_levels import MeshCarrier, Messages
from holdfast.train.sums.over_memory import OverMemory
from holdfast.train.sums.shared_memory import (
    HostMemory,
    MemoryLease,
    PeerMemory,
    Unshared,
)
from holdfast.wire.errors import PeerLost
from tests.unit.train.meshes import Thread, meshes
from tests.unit.train.test_exchange_plan import dealt

CLONE_NEWPID = 0x20000000
CPU = torch.device("cpu")
NAMES = r"memfd:holdfast-\w+"
SIZES = (40, 3, 64, 17, 30)
Held = Mapping[int, Sequence[int]]


class Small(HostMemory):
    """Two buckets are a stage, and half a bucket is added at once."""

    stage_bytes, block_bytes = 256, 64


class Worker:
    """One member, with lanes whose gradients depend on the lane alone."""

    def __init__(self, lanes: int, memory: PeerMemory | None, device: torch.device = CPU) -> None:
        self.lanes = lanes
        parameters = [nn.Parameter(torch.zeros(size, device=device)) for size in SIZES]
        self.layout = Layout(parameters, bucket_bytes=128)
        self.layout.memory = memory
        self.sums, self.total = GradientSums(self.layout, lanes), self.layout.allocate()
        self.exchange: MeshExchange | None = None

    def connect(self, mesh: Mesh, held: Held) -> None:
        self.exchange = MeshExchange(
            mesh,
            Conversation(mesh),
            held,
            self.lanes,
            self.layout,
            self.total_of,
            memory=self.layout.memory,
        )
        self.sums.keep(held[mesh.worker])
        self.held = held[mesh.worker]

    def total_of(self, way: Way) -> list[torch.Tensor]:
        return self.layout.allocate(CPU) if way is Way.TCP else self.total

    def compute(self, held: Sequence[int], step: int) -> None:
        for lane in self.sums.missing(held):
            self.sums.begin(lane)
            for number, gradient in enumerate(gradients(step, lane)):
                self.sums.take(number, gradient.to(self.layout.device))
            self.sums.end()

    def step(self, number: int) -> bytes:
        """The bytes of the sum."""
        assert self.exchange is not None
        self.compute(self.held, number)
        self.exchange.begin(number, self.sums, b"")
        heard = self.exchange.finish(b"words" * 300)
        assert set(heard.values()) <= {b"words" * 300}
        self.sums.clear()
        return bits(self.exchange.total)

    @property
    def way(self) -> Way:
        assert self.exchange is not None
        assert self.exchange.choice is not None
        return self.exchange.choice.way

    def close(self) -> None:
        if self.exchange is not None:
            self.exchange.close()


@cache
def gradients(step: int, lane: int) -> list[torch.Tensor]:
    chance = torch.Generator().manual_seed(1_000 * step + lane)
    return [torch.randn(size, generator=chance) for size in SIZES]


def bits(flat: Sequence[torch.Tensor]) -> bytes:
    return b"".join(each.cpu().numpy().tobytes() for each in flat)


def right(lanes: int, step: int) -> bytes:
    """What the sum has to be: each lane by itself, in the order of the tree."""
    layout, values = Worker(lanes, None).layout, {}
    for lane in range(lanes):
        flat = layout.allocate()
        for number, gradient in enumerate(gradients(step, lane)):
            layout.view(flat, number).copy_(gradient)
        values[tree.PartialSum(lane, 1)] = flat
    return bits(tree.fold(values, lanes, lambda a, b: [x + y for x, y in zip(a, b, strict=True)]))


def together(workers: Sequence[Worker], step: int) -> list[bytes]:
    running = [Thread(partial(each.step, step)) for each in workers]
    return [one.result() for one in running]


# --- in one process ----------------------------------------------------------------------------


def test_the_sum_has_the_same_bits_for_every_number_of_members_and_lanes() -> None:
    for lanes in range(1, 17):
        expected = right(lanes, 0)
        for members in range(1, min(lanes, 8) + 1):
            held = dealt(members, lanes, seed=lanes * members)
            plan = exchange_plan.plan(held, lanes)
            workers = [Worker(lanes, None) for _ in held]
            total, pieces = workers[0].total, dict[tree.PartialSum, list[torch.Tensor]]()
            for me, worker in enumerate(workers):
                worker.compute(held[me], 0)
                pieces |= worker.sums.partials
            for me in held:  # each owner's chunks, into one total
                mesh, memory, layout = Mesh(me, 1, 0, {}), Small(), workers[0].layout
                transport = OverMemory(mesh, plan, layout, total, memory, MemoryLease(), {})
                for stage, (buckets,) in enumerate(transport._spans):
                    found = {(each, 0): one_piece(flat, buckets) for each, flat in pieces.items()}
                    transport._combine(stage, found)
            assert bits(total) == expected, (lanes, members)


@pytest.mark.parametrize(("members", "lanes"), [(2, 2), (3, 7), (8, 16)])
def test_members_that_share_memory_have_the_same_sum_step_after_step(
    members: int, lanes: int
) -> None:
    held = dealt(members, lanes, seed=lanes * members)
    with meshes(members) as made:
        workers = [Worker(lanes, Small()) for _ in made]
        for worker, mesh in zip(workers, made, strict=True):
            worker.connect(mesh, held)
        for step in range(3):
            assert together(workers, step) == [right(lanes, step)] * members
        assert {worker.way for worker in workers} == {Way.SHARED}
        for mesh in made:
            mesh.close()
        for worker in workers:
            worker.close()


class Elsewhere(Small):
    """On a machine of this name, as far as it says."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def place(self) -> MemberPlace:
        return super().place()._replace(machine=self._name)


@pytest.mark.parametrize("machines", ["aab", "aabb", "abab", "aaab", "abcc", "aabbcccc"])
@pytest.mark.parametrize("lanes", [8, 11])
def test_members_of_several_machines_have_the_same_sum_in_two_levels(
    machines: str, lanes: int
) -> None:
    held = dealt(len(machines), lanes, seed=lanes)
    with meshes(len(machines)) as made:
        workers = [Worker(lanes, Elsewhere(name)) for name in machines]
        for worker, mesh in zip(workers, made, strict=True):
            worker.connect(mesh, held)
        for step in range(3):
            assert together(workers, step) == [right(lanes, step)] * len(machines)
        assert {worker.way for worker in workers} == {Way.LEVELS}
        for mesh in made:
            mesh.close()
        for worker in workers:
            worker.close()


class Slow(MeshCarrier):
    """Takes part in the sums from some step on."""

    def __init__(self, mesh: Mesh, made: threading.Event) -> None:
        assert made.wait(60)
        super().__init__(mesh)


@pytest.mark.parametrize("fails", [None, 1])
def test_a_better_way_that_takes_long_to_make_is_taken_when_all_have_it(
    monkeypatch: pytest.MonkeyPatch, fails: int | None
) -> None:
    """As NCCL is: steps go over TCP until then, and for ever if a member cannot have it."""
    held, made_it = dealt(4, 8, seed=3), threading.Event()

    def in_background(
        self: MeshExchange, _owners: Sequence[int]
    ) -> Callable[[Better], MeshCarrier]:
        def make(_better: Better) -> MeshCarrier:
            if self._mesh.worker == fails:
                raise Unshared("it has no such thing")
            return Slow(self._mesh, made_it)

        return make

    monkeypatch.setattr(MeshExchange, "_nccl", in_background)
    monkeypatch.setattr(Elsewhere, "place", lambda self: MemberPlace(self._name, "cuda", nccl="1"))
    with meshes(4) as made:
        workers = [Worker(8, Elsewhere(name)) for name in "aabb"]
        for worker, mesh in zip(workers, made, strict=True):
            worker.connect(mesh, held)

        def over() -> set[str]:
            return {type(each.exchange._transport).__name__ for each in workers if each.exchange}

        assert together(workers, 0) == [right(8, 0)] * 4
        assert over() == {"OverTcp"}
        if fails is None:
            made_it.set()
        for step in range(1, 200 if fails is None else 5):
            assert together(workers, step) == [right(8, step)] * 4
            if over() == {"OverLevels"}:
                break
            time.sleep(0.01)  # pause: between two steps
        assert over() == ({"OverLevels"} if fails is None else {"OverTcp"})
        assert {worker.way for worker in workers} == {Way.NCCL if fails is None else Way.TCP}
        assert together(workers, 201) == [right(8, 201)] * 4
        made_it.set()
        for mesh in made:
            mesh.close()
        for worker in workers:
            worker.close()


class Late(MeshCarrier):
    """Begins nothing before it is asked to finish it. What is to arrive is spoiled until then, and
    what is to leave must stay as it is."""

    ahead = 1

    def __init__(self, mesh: Mesh) -> None:
        super().__init__(mesh)
        self._kept = deque[tuple[Messages, Messages, list[torch.Tensor]]]()

    def begin(self, sends: Messages, receives: Messages) -> None:
        for each in (tensor for tensors in receives.values() for tensor in tensors):
            each.fill_(float("nan"))
        leaving = [tensor.clone() for tensors in sends.values() for tensor in tensors]
        self._kept.append((sends, receives, leaving))
        assert len(self._kept) <= self.ahead + 2  # the last two sums are sent back side by side

    def finish(self) -> None:
        sends, receives, before = self._kept.popleft()
        leaving = [tensor for tensors in sends.values() for tensor in tensors]
        assert all(map(torch.equal, leaving, before))
        super().begin(sends, receives)


@pytest.mark.parametrize(
    ("machines", "way", "ahead"),
    [
        *((machines, Way.NCCL, 1) for machines in ("ab", "abc", "aabb", "abb", "abcdabcd")),
        *((machines, Way.NCCL, 3) for machines in ("abc", "aabb")),
        *((machines, Way.LEVELS, 2) for machines in ("aabb", "abb", "abcdabcd")),
    ],
)
def test_a_carrier_that_is_a_stage_behind_changes_no_bit(
    monkeypatch: pytest.MonkeyPatch, machines: str, way: Way, ahead: int
) -> None:
    lanes = 11
    held = dealt(len(machines), lanes, seed=lanes)
    monkeypatch.setattr(Late, "ahead", ahead)
    monkeypatch.setattr(Elsewhere, "stage_bytes", 1)  # each bucket is a stage
    monkeypatch.setattr(exchange, "MeshCarrier", Late)
    monkeypatch.setattr(
        MeshExchange, "_nccl", lambda self, _owners: lambda _better: Late(self._mesh)
    )
    monkeypatch.setattr(
        Elsewhere,
        "place",
        lambda self: MemberPlace(self._name, "cpu", nccl="1" if way is Way.NCCL else ""),
    )
    with meshes(len(machines)) as made:
        workers = [Worker(lanes, Elsewhere(name)) for name in machines]
        for worker, mesh in zip(workers, made, strict=True):
            worker.connect(mesh, held)
        over, step = set[str](), 0
        while over != {"OverLevels"}:
            assert together(workers, step) == [right(lanes, step)] * len(machines)
            over = {type(each.exchange._transport).__name__ for each in workers if each.exchange}
            step += 1
        for each in range(step, step + 3):
            assert together(workers, each) == [right(lanes, each)] * len(machines)
        assert {worker.way for worker in workers} == {way}
        for mesh in made:
            mesh.close()
        for worker in workers:
            worker.close()


class Stuck(Late):
    """A peer is gone for good, and nothing says so but a look."""

    def look(self) -> None:
        if self._kept:
            raise PeerLost("a peer is gone")


def test_what_is_under_way_is_looked_at_while_the_loop_computes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The loop may wait for its device, and the device for what a dead peer was to send."""
    held = dealt(3, 6, seed=1)
    monkeypatch.setattr(exchange, "MeshCarrier", Stuck)
    with meshes(3) as made:
        workers = [Worker(6, Elsewhere(name)) for name in "aab"]
        for worker, mesh in zip(workers, made, strict=True):
            worker.connect(mesh, held)
        for worker in workers:
            worker.compute(worker.held, 0)
            assert worker.exchange is not None
            worker.exchange.begin(0, worker.sums, b"")
            worker.exchange.ready(0)
            worker.exchange.ready(1)  # the first stage; the loop goes on with the others
        failed = [each.exchange for each in workers]
        deadline_s = time.monotonic() + 60
        while not all(each is not None and each._failed for each in failed):
            assert time.monotonic() < deadline_s
            time.sleep(0.01)  # pause: until the threads have looked
        for worker in workers:
            with pytest.raises(PeerLost, match="a peer is gone"):
                worker.exchange.finish(b"")  # type: ignore[union-attr]
        for mesh in made:
            mesh.close()
        for worker in workers:
            worker.close()


def test_one_member_that_shares_nothing_takes_all_of_them_over_tcp() -> None:
    held = dealt(3, 6, seed=1)
    with meshes(3) as made:
        workers = [Worker(6, None if number == 1 else Small()) for number in range(3)]
        for worker, mesh in zip(workers, made, strict=True):
            worker.connect(mesh, held)
        assert together(workers, 0) == [right(6, 0)] * 3
        assert {worker.way for worker in workers} == {Way.TCP}
        for mesh in made:
            mesh.close()
        for worker in workers:
            worker.close()


def test_memory_that_cannot_be_opened_later_on_is_given_up_for_tcp_in_the_next_meeting() -> None:
    held = dealt(2, 4, seed=1)
    workers = [Worker(4, Small()) for _ in range(2)]
    workers[0].sums._free.append(workers[0].layout.allocate(torch.device("cpu")))  # private
    with meshes(2) as made:
        for worker, mesh in zip(workers, made, strict=True):
            worker.connect(mesh, held)
        running = [Thread(partial(each.step, 0)) for each in workers]
        for one in running:
            with pytest.raises(PeerLost):
                one.result()
    with meshes(2) as made:
        for worker, mesh in zip(workers, made, strict=True):
            worker.close()
            worker.connect(mesh, held)
        assert together(workers, 0) == [right(4, 0)] * 2
        assert {worker.way for worker in workers} == {Way.TCP}
        for mesh in made:
            mesh.close()
    for worker in workers:
        worker.close()


def test_a_member_that_was_left_behind_in_the_middle_does_not_believe_what_it_has_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All messages of the step are here. But the peer has lost its connections meanwhile, and may
    have written to its memory before this member had read it."""
    held = dealt(2, 4, seed=1)
    with meshes(2) as made:
        workers = [Worker(4, Small()) for _ in range(2)]
        for worker, mesh in zip(workers, made, strict=True):
            worker.connect(mesh, held)
        assert together(workers, 0) == [right(4, 0)] * 2
        copy = OverMemory._copy

        def left_behind(self: OverMemory, stages: Sequence[int]) -> None:
            if self is workers[0].exchange._transport and stages[-1] == len(self.stages) - 1:  # type: ignore[union-attr]
                workers[1].exchange._transport._lease.withdraw()  # type: ignore[union-attr]
            copy(self, stages)

        monkeypatch.setattr(OverMemory, "_copy", left_behind)
        running = [Thread(partial(each.step, 1)) for each in workers]
        with pytest.raises(PeerLost, match="worker 1 has gone on without this one"):
            running[0].result()
        with pytest.raises(PeerLost):
            running[1].result()
        for worker in workers:
            worker.close()


# --- in processes of their own -----------------------------------------------------------------


class Child:
    """A call in a forked process."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.pid = os.fork()
        if self.pid == 0:
            status = 1
            try:
                call()
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(status)

    def wait(self) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def killed_at_stage(victim: int, stage: int, step: int) -> None:
    """This process is to be killed where it combines that stage of that step."""
    combine, calls = OverMemory._combine, [0]

    def fatal(self: OverMemory, number: int, found: Any) -> None:
        if number == stage:
            if calls[0] == step and self._mesh.worker == victim:
                os.kill(os.getpid(), signal.SIGKILL)
            calls[0] += 1
        combine(self, number, found)

    over_memory.OverMemory._combine = fatal  # type: ignore[method-assign, assignment]


def own_names() -> set[str]:
    """The regions that this process has made."""
    found = set()
    for path in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            found |= set(re.findall(NAMES, str(path.readlink())))
    return found


def let_go(mesh: Mesh) -> None:
    """Its connections are another process's."""
    for wire in mesh._wires.values():
        wire.sock.close()


def only(made: Sequence[Mesh], me: int) -> Mesh:
    """A forked process has one end of each connection, not both."""
    for mesh in made:
        if mesh.worker != me:
            let_go(mesh)
    return made[me]


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_a_member_killed_in_the_middle_of_a_sum_costs_the_others_neither_bits_nor_memory(
    stage: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    lanes, victim = 8, 2
    held, later = dealt(3, lanes, seed=4), dealt(2, lanes, seed=5)
    # Meshes are closed in whatever is forked: these processes are members themselves.
    monkeypatch.setattr(Mesh, "_forked", lambda _: None)
    with meshes(3) as first, meshes(2) as second:

        def member(me: int) -> None:
            torch.set_num_threads(1)
            mesh, next_mesh = only(first, me), only(second, me) if me < 2 else None
            for each in second if me == victim else ():
                let_go(each)
            killed_at_stage(victim, stage, step=1)
            worker = Worker(lanes, Small())
            worker.connect(mesh, held)
            assert worker.step(0) == right(lanes, 0)
            try:
                worker.step(1)
                raise AssertionError("a step is complete without a member")
            except PeerLost:
                pass
            assert next_mesh is not None
            worker.close()
            computed = worker.sums.computed
            worker.connect(next_mesh, later)
            kept = set(held[me]) & set(later[me])
            assert worker.step(1) == right(lanes, 1)
            assert worker.sums.computed - computed <= lanes - len(kept)
            assert worker.step(2) == right(lanes, 2)
            assert worker.way is Way.SHARED
            next_mesh.close()
            worker.close()
            of_others = set(re.findall(NAMES, Path("/proc/self/maps").read_text())) - own_names()
            assert not of_others, "what peers have shared is still mapped"

        children = [Child(partial(member, each)) for each in range(3)]
        for mesh in (*first, *second):
            let_go(mesh)
        assert [child.wait() for child in children] == [0, 0, -signal.SIGKILL]
    left = " ".join(os.listdir("/dev/shm"))  # noqa: PTH208
    assert not [child.pid for child in children if re.search(rf"\b_?{child.pid}\b", left)]


def test_members_that_see_different_processes_sum_over_tcp() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if (pid := os.fork()) == 0:
        os._exit(bool(libc.unshare(CLONE_NEWPID)))
    if os.waitpid(pid, 0)[1]:
        pytest.skip("this user may not make namespaces")
    # In a Python of its own: gRPC, which other tests have loaded here, starts threads after a fork,
    # and whoever has left its process namespace cannot have new ones.
    program = f"from {__name__} import sum_apart; sum_apart()"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)


def sum_apart() -> None:
    """Two members, one of them in a process namespace of its own."""
    lanes, libc = 4, ctypes.CDLL(None, use_errno=True)
    held = dealt(2, lanes, seed=1)
    Mesh._forked = lambda _: None  # type: ignore[method-assign, assignment]
    with meshes(2) as made:

        def member(me: int) -> None:
            mesh = only(made, me)
            worker = Worker(lanes, Small())
            worker.connect(mesh, held)
            assert worker.step(0) == right(lanes, 0)
            assert worker.way is Way.TCP
            assert worker.exchange is not None
            assert worker.exchange.choice is not None
            assert "cannot open what the others share" in worker.exchange.choice.why
            mesh.close()
            worker.close()

        def apart() -> None:
            assert libc.unshare(CLONE_NEWPID) == 0
            inner = Child(lambda: member(1))
            for mesh in made:
                let_go(mesh)
            assert inner.wait() == 0

        children = [Child(lambda: member(0)), Child(apart)]
        for mesh in made:
            let_go(mesh)
        assert [child.wait() for child in children] == [0, 0]
