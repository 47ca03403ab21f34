"""Trainings on a GPU whose workers are killed: one SHA-256, whatever gradients travel over.

A training is done alone. Then three workers share the GPU: over its memory, over NCCL (each with an
`NCCL_HOSTID` of its own), over TCP. In each a worker is killed somewhere in a step, a new one
joins, and is killed again.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from holdfast.train.launching import DEVICE_VARIABLE
from holdfast.wire.worker_messages import EXCHANGE_VARIABLE, NETWORK_VARIABLE
from tests.faults.training_stage import Host, TrainingStage, hosted
from tests.servers.forking import Forked

SOCKETS: Final = {
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
    NETWORK_VARIABLE: "trusted",
}
# What each is told, and what its workers say of the way once they take it.
WAYS: Final[Mapping[str, tuple[Mapping[str, str], str]]] = {
    "memory": ({}, "over='shared memory'"),
    "nccl": (SOCKETS, "it is there"),
    "tcp": ({EXCHANGE_VARIABLE: "tcp"}, "over='TCP'"),
}
KILLS: Final = 2
# So that steps are left when a new worker has joined and NCCL has come about once more: its lanes
# take worker 0 so long.
EPOCHS: Final = int(os.environ.get("HOLDFAST_GPU_EPOCHS", "24"))
LANE_S: Final = 0.005


class GpuStage(TrainingStage):
    def __init__(self, folder: Path, host: Host, way: str, device: str) -> None:
        super().__init__(folder, host, more={DEVICE_VARIABLE: device, **WAYS[way][0]})
        self._way, self.patience_s = way, 180.0
        self.options = {"model": "mlp", "samples": 1600, "epochs": EPOCHS, "silent": True}

    def spawn(self, command: Sequence[str], environment: Mapping[str, str], output: Path) -> Forked:
        apart = {}
        if self._way == "nccl":
            apart["NCCL_HOSTID"] = f"machine-{environment['HOLDFAST_WORKER']}"
        return super().spawn(command, {**environment, **apart}, output)


def alone(folder: Path, host: Host, device: str = "cuda") -> dict[str, Any]:
    with GpuStage(folder, host, "memory", device) as stage:
        return stage.alone()


def killed(folder: Path, host: Host, way: str, device: str = "cuda") -> list[dict[str, Any]]:
    """The answers of who is left."""
    chance = random.Random(way)
    with GpuStage(folder, host, way, device) as stage:
        stage.options["slow"] = {"0": LANE_S}
        members = [0, 1, 2]
        stage.start(*members)
        stage.move(members, restore=0)
        for number in range(KILLS):
            for each in members:
                stage.wait(f"{way} is the way of {each}", lambda it=each: _said(stage, it, way))  # type: ignore[misc]
            stage.wait_for_step(stage.step + 5)
            time.sleep(chance.random() * 0.05)  # pause: somewhere in a step
            victim = members.pop(chance.randrange(1, len(members)))
            stage.workers[victim].kill()
            for each in members:
                with stage.workers[each].output.open("a") as output:
                    output.write("killed another\n")
            stage.move(members)
            stage.wait_for_step(stage.step + 5)
            if number + 1 < KILLS:
                stage.start(3 + number)
                members = sorted([*members, 3 + number])
                stage.move(members)
                stage.wait_for_adoption()
        return stage.answers()


def _said(stage: TrainingStage, worker: int, way: str) -> bool:
    """Whether it has taken this way since the last one was killed."""
    text = stage.workers[worker].output.read_text().rpartition("killed another")[2]
    return WAYS[way][1] in text


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    with hosted("tests.gpu.kill_scenarios") as found:
        yield found


@pytest.fixture(scope="module")
def right(host: Host, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return alone(tmp_path_factory.mktemp("alone"), host)


@pytest.mark.parametrize("way", sorted(WAYS))
def test_kills_leave_the_bits_of_one_process(
    way: str, host: Host, right: dict[str, Any], tmp_path: Path
) -> None:
    answers = killed(tmp_path, host, way)
    assert {answer["digest"] for answer in answers} == {right["digest"]}
    print(f"over {way}, {KILLS} kills: {right['digest']} after {right['step']} steps")
