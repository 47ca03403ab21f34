"""A job of plain Python workers: they count, and every count depends on all before it.

    python examples/counter.py --steps 300                 # alone, all lanes in this process
    holdfast run examples/counter.py --workers 4 -- --steps 300
    python examples/counter.py --steps 300 --expected      # the right answer, without any of it

Each lane's contribution to a step is a hash of the seed, the step, the lane, the settings and the
state before. Contributions are combined in tree order, by a hash chain and by a sum in which order
and multiplicity matter; and for each sample the state has how often it was counted. So whoever is
killed, the answer is right if and only if every sample counted once, in its place.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import struct
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from holdfast.storage import open_store
from holdfast.train.members.effective import EffectiveSetting, in_effect
from holdfast.train.members.member import ViewMember
from holdfast.train.members.mesh import Mesh
from holdfast.train.members.solo import Solo
from holdfast.train.states.state import StateEntry, TrainingState
from holdfast.train.sums import tree
from holdfast.train.sums.tree import PartialSum
from holdfast.wire import worker_messages
from holdfast.wire.errors import PeerLost
from holdfast.wire.reports import TOTAL_METRIC
from holdfast.worker.agent_client import AgentClient

MASK = 2**64 - 1
TAG = 16
HEAD = struct.Struct("<32sQI")  # hash, sum, how many lanes it was made of


class Count(NamedTuple):
    """What a lane, or a subtree of lanes, contributes to a step."""

    chain: bytes
    total: int
    lanes: tuple[int, ...]

    def to_bytes(self) -> bytes:
        head = HEAD.pack(self.chain, self.total, len(self.lanes))
        return head + struct.pack(f"<{len(self.lanes)}I", *self.lanes)

    @classmethod
    def of(cls, data: bytes) -> Count:
        chain, total, lanes = HEAD.unpack_from(data)
        return cls(chain, total, struct.unpack_from(f"<{lanes}I", data, HEAD.size))


def contribution(
    chain: bytes, seed: int, step: int, lane: int, settings: Mapping[str, str]
) -> Count:
    """What a lane brings to a step: a pure function of these."""
    what = f"{seed} {step} {lane} {sorted(settings.items())}".encode()
    found = hashlib.sha256(chain + what).digest()
    rate = int(settings.get("rate", "1"))
    return Count(found, int.from_bytes(found[:4], "little") * rate & MASK, (lane,))


def combine(left: Count, right: Count) -> Count:
    return Count(
        hashlib.sha256(left.chain + right.chain).digest(),
        (left.total * 3 + right.total) & MASK,
        left.lanes + right.lanes,
    )


class Counter:
    """The state of the job: who owns it is called a holder."""

    def __init__(self, seed: int, steps: int, lanes: int, ballast_bytes: int = 0) -> None:
        self.seed, self.steps, self.lanes = seed, steps, lanes
        self.ballast = bytearray(ballast_bytes)
        self.fresh()

    def fresh(self) -> None:
        self.chain = hashlib.sha256(f"counter {self.seed}".encode()).digest()
        self.total = 0
        self.counted = bytearray(self.steps * self.lanes)
        block = hashlib.sha512(self.chain).digest()
        self.ballast[:] = (block * (len(self.ballast) // len(block) + 1))[: len(self.ballast)]

    def state(self) -> TrainingState:
        entries = [
            StateEntry.of("ballast", "U8", (len(self.ballast),), self.ballast),
            StateEntry.of("chain", "U8", (32,), self.chain),
            StateEntry.of("counted", "U8", (self.steps, self.lanes), self.counted),
            StateEntry.of("total", "U64", (1,), self.total.to_bytes(8, "little")),
        ]
        return TrainingState.of(0, entries)

    def adopt(self, state: TrainingState) -> None:
        self.ballast[:] = state["ballast"].data
        self.chain = bytes(state["chain"].data)
        self.counted[:] = state["counted"].data
        self.total = int.from_bytes(state["total"].data, "little")

    def apply(self, step: int, whole: Count) -> None:
        """Complete a step."""
        self.chain = hashlib.sha256(self.chain + whole.chain + step.to_bytes(8, "little")).digest()
        self.total = (self.total + whole.total) & MASK
        for lane in whole.lanes:
            self.counted[(step - 1) * self.lanes + lane] += 1

    def answer(self) -> dict[str, object]:
        wrong = sum(1 for times in self.counted if times != 1)
        return {
            "chain": self.chain.hex(),
            "total": self.total,
            "samples": len(self.counted),
            "not_counted_once": wrong,
        }


def expected(counter: Counter, settings: Sequence[EffectiveSetting]) -> dict[str, object]:
    """The right answer, computed as simply as possible."""
    for step in range(1, counter.steps + 1):
        known = in_effect(tuple(settings), step)
        leaves = {
            PartialSum(lane, 1): contribution(counter.chain, counter.seed, step, lane, known)
            for lane in range(counter.lanes)
        }
        counter.apply(step, tree.fold(leaves, counter.lanes, combine))
    return counter.answer()


def gather(
    mesh: Mesh, held: Mapping[int, Sequence[int]], mine: dict[int, Count], lanes: int
) -> Count:
    """The value of the whole tree, from everyone's pieces. Raises `PeerLost`."""
    pieces = {worker: tree.partial_sums(sorted(held[worker]), lanes) for worker in held}
    values: dict[PartialSum, Count] = {}
    for piece in pieces[mesh.worker]:
        leaves = range(piece.first, min(piece.first + piece.size, lanes))
        values[piece] = _subtree([mine[lane] for lane in leaves])
    out = b"".join(values[piece].to_bytes() for piece in pieces[mesh.worker])
    buffers = {
        peer: bytearray(sum(_width(piece, lanes) for piece in pieces[peer])) for peer in mesh.peers
    }
    mesh.exchange(
        {peer: [out] for peer in mesh.peers},
        {peer: [buffer] for peer, buffer in buffers.items()},
        tag=TAG,
    )
    for peer, buffer in buffers.items():
        at = 0
        for piece in pieces[peer]:
            width = _width(piece, lanes)
            values[piece] = Count.of(bytes(buffer[at : at + width]))
            at += width
    return tree.fold(values, lanes, combine)


def _subtree(leaves: Sequence[Count]) -> Count:
    return tree.fold(
        {PartialSum(place, 1): leaf for place, leaf in enumerate(leaves)}, len(leaves), combine
    )


def _width(piece: PartialSum, lanes: int) -> int:
    return HEAD.size + 4 * (min(piece.first + piece.size, lanes) - piece.first)


def work(member: ViewMember | Solo, counter: Counter, step_ms: float) -> None:
    """The loop of a worker: only lanes that it has not computed yet are computed."""
    mine: dict[int, Count] = {}
    said_s = 0.0
    while member.step < counter.steps:
        step = member.step + 1
        try:
            for lane in member.lanes:
                if lane not in mine:
                    time.sleep(step_ms / 1000 / len(member.lanes))
                    mine[lane] = contribution(
                        counter.chain, counter.seed, step, lane, member.settings
                    )
            whole = gather(member.mesh, member.view.lanes, mine, counter.lanes)
        except PeerLost as lost:
            print(f"step {step} is interrupted: {lost.what}", flush=True)
            before = set(member.lanes)
            if member.renew():
                mine.clear()
            _say_view(member, before)
            continue
        counter.apply(step, whole)
        mine.clear()
        before = set(member.lanes)
        metrics = {"total": float(counter.total % 1000), TOTAL_METRIC: float(counter.steps)}
        if member.boundary(metrics):
            _say_view(member, before)
        if time.monotonic() > said_s + 1 or step == counter.steps:
            said_s = time.monotonic()
            print(f"step {member.step} of {counter.steps}", flush=True)


def _say_view(member: ViewMember | Solo, before: set[int]) -> None:
    new = sorted(set(member.lanes) - before)
    print(
        f"view {member.view.number} with {len(member.view.lanes)} workers, after step "
        f"{member.step}: lanes {list(member.lanes)}" + (f", {new} are new" if new else ""),
        flush=True,
    )


def _setting(text: str) -> EffectiveSetting:
    name, _, rest = text.partition("=")
    value, _, step = rest.partition("@")
    return EffectiveSetting(name, value, int(step or 1))


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="a job that counts, and notices what is lost")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--step-ms", type=float, default=10.0, help="how long a step takes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lanes", type=int, help="only without a cluster; 8 by default")
    parser.add_argument("--ballast", type=int, default=0, help="bytes that the state is larger by")
    parser.add_argument("--answer", type=Path, help="a file for the answer")
    parser.add_argument("--folder", type=Path, help="checkpoints, without a cluster")
    parser.add_argument("--expected", action="store_true", help="only compute the right answer")
    parser.add_argument(
        "--set", type=_setting, action="append", default=[], metavar="NAME=VALUE@STEP"
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    lanes = options.lanes or int(os.environ.get(worker_messages.LANES_VARIABLE) or 8)
    counter = Counter(options.seed, options.steps, lanes, options.ballast)
    if options.expected:
        _write(expected(counter, options.set), options.answer)
        return 0
    agent = AgentClient.from_environment()
    member: ViewMember | Solo
    if agent is None:
        known = {setting.name: setting.value for setting in options.set}
        member = Solo(counter, lanes, settings=known, folder=options.folder)
    else:
        store = os.environ.get(worker_messages.STORE_VARIABLE)
        member = ViewMember(agent, counter, open_store(store) if store else None)
    member.join()
    _say_view(member, set())
    work(member, counter, options.step_ms)
    answer = counter.answer()
    _write(answer, options.answer)  # before the end: a job that has succeeded has its answer
    member.finish()
    return 0 if answer["not_counted_once"] == 0 else 1


def _write(answer: dict[str, object], file: Path | None) -> None:
    text = json.dumps(answer, sort_keys=True)
    print(f"answer {text}", flush=True)
    if file is not None:
        unfinished = file.with_name(f"{file.name}.{os.getpid()}")
        unfinished.write_text(text + "\n")
        unfinished.rename(file)


if __name__ == "__main__":
    sys.exit(main())
