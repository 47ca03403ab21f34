"""What all members do alike: settings at the same step, a cut link, a flipped bit, and chance."""

from __future__ import annotations

import hashlib
import os
import random
import re
from pathlib import Path

import pytest

from holdfast.storage import open_store
from holdfast.train.members.effective import EffectiveSetting
from holdfast.train.states.checkpoints import restore
from holdfast.train.states.divergence import HASH_STEPS
from tests.faults.members_stage import JOB, Stage
from tests.faults.test_members_checkpoints import checkpoint
from tests.servers.cutting import CuttingProxy


def record_of(stage: Stage, manifest: str, step: int) -> list[EffectiveSetting]:
    """From which steps settings were in effect, as a checkpoint says."""
    notes = restore(open_store(stage.store), manifest, JOB, step).notes
    return [EffectiveSetting(*setting) for setting in notes["holdfast"]["settings"]]


def as_options(record: list[EffectiveSetting]) -> list[str]:
    return [
        word
        for setting in record
        for word in ("--set", f"{setting.name}={setting.value}@{setting.step}")
    ]


def test_settings_take_effect_at_the_same_step_everywhere_and_the_record_replays_the_run(
    tmp_path: Path,
) -> None:
    with Stage(tmp_path, steps=150, step_ms=5) as stage:
        stage.settings = [("rate", "2", 0)]
        stage.start(0, 1, 2)
        stage.move([0, 1, 2], restore=0)
        stage.wait_for_step(10)
        stage.settings.append(("rate", "7", 0))  # as soon as all know it
        stage.next_view([0, 1, 2])
        stage.give(0)  # the others hear of it later
        stage.wait("it waits for them", lambda: stage.workers[0].said["view"] == 2)
        stage.give(1, 2)
        stage.wait_for_adoption()
        stage.settings.append(("rate", "11", 100))  # at a step that is named
        stage.move([0, 1, 2])
        stage.wait_for_adoption()
        stage.workers[1].kill()
        stage.start(3)
        stage.move([0, 2, 3])  # a joiner knows it from the state
        manifest = stage.end(150)
        record = record_of(stage, manifest, 150)
        assert [(setting.name, setting.value) for setting in record] == [
            *(("rate", "2"), ("rate", "7"), ("rate", "11"))
        ]
        assert record[0].step == 1 and 10 < record[1].step < 100 and record[2].step == 100
        assert stage.the_answer() == stage.right_answer(*as_options(record))
        assert stage.the_answer() != stage.right_answer()


def test_a_setting_that_was_recorded_keeps_its_step_through_a_restore(tmp_path: Path) -> None:
    with Stage(tmp_path, steps=200, step_ms=5) as stage:
        stage.start(0, 1)
        stage.settings = [("rate", "3", 150)]
        stage.move([0, 1], restore=0)
        stage.wait_for_step(2)
        step, manifest = checkpoint(stage)
        for worker in stage.workers.values():
            worker.kill()
        stage.start(2)
        stage.move([2], restore=step, manifest=manifest)
        stage.end(200)
        assert stage.the_answer() == stage.right_answer("--set", "rate=3@150")


@pytest.mark.parametrize("after_bytes", [0, 100, 5_000])
def test_a_link_that_is_cut_costs_a_round_and_no_member(tmp_path: Path, after_bytes: int) -> None:
    with Stage(tmp_path, steps=150, step_ms=5) as stage:
        stage.start(0, 1, 2)
        with CuttingProxy(stage.workers[0].port) as proxy:
            stage.addresses[0] = f"127.0.0.1:{proxy.port}"  # both others reach it through this
            stage.move([0, 1, 2], restore=0)
            for _ in range(3):
                stage.wait_for_step(stage.step + 10)
                cuts = proxy.cuts
                proxy.cut_next_answer(after_bytes)
                stage.wait("it is cut", lambda: proxy.cuts > cuts)  # noqa: B023
            stage.wait_for_step(stage.step + 5)
            stage.end(150)
        assert [worker.said["view"] for worker in stage.workers.values()] == [1, 1, 1]
        assert stage.the_answer() == stage.right_answer()


def flip_a_bit(pid: int, pattern: bytes) -> int:
    """Change one bit of a process's memory wherever the pattern is; how many places."""
    found = 0
    regions = re.findall(
        r"^([0-9a-f]+)-([0-9a-f]+) rw", Path(f"/proc/{pid}/maps").read_text(), re.M
    )
    with open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:  # noqa: PTH123
        for begin, end in ((int(a, 16), int(b, 16)) for a, b in regions):
            try:
                memory.seek(begin)
                data = memory.read(end - begin)
            except OSError:
                continue
            for match in re.finditer(re.escape(pattern), data):
                memory.seek(begin + match.start())
                memory.write(bytes([pattern[0] ^ 1]))
                found += 1
    return found


def ballast_pattern() -> bytes:
    """What the counter's ballast of seed 0 begins with."""
    return hashlib.sha512(hashlib.sha256(b"counter 0").digest()).digest()


def test_a_flipped_bit_in_one_members_memory_is_found_named_and_healed(tmp_path: Path) -> None:
    more = ("--ballast", "64")
    with Stage(tmp_path, steps=4 * HASH_STEPS, step_ms=10) as stage:
        stage.start(0, 1, 2, more=more)
        stage.move([0, 1, 2], restore=0)
        stage.wait_for_step(3)
        assert flip_a_bit(stage.workers[0].process.pid, ballast_pattern()) > 0
        manifest = stage.end(4 * HASH_STEPS)
        for worker in stage.workers.values():
            # Once, although digests were compared four times: it was healed.
            assert worker.output.read_text().count("worker 0 differs in ballast") == 1
        state = restore(open_store(stage.store), manifest, JOB, 4 * HASH_STEPS)
        assert bytes(state["ballast"].data) == ballast_pattern()
        assert stage.the_answer() == stage.right_answer(*more)


def test_two_members_that_differ_stop_with_an_error_that_names_the_entry(tmp_path: Path) -> None:
    with Stage(tmp_path, steps=4 * HASH_STEPS, step_ms=10) as stage:
        stage.start(0, 1, more=("--ballast", "64"))
        stage.move([0, 1], restore=0)
        stage.wait_for_step(3)
        assert flip_a_bit(stage.workers[1].process.pid, ballast_pattern()) > 0
        for worker in stage.workers.values():
            assert worker.process.wait(60) == 1
            said = worker.output.read_text()
            assert "hold different states" in said and "worker 1 differs in ballast" in said


@pytest.mark.parametrize("turn", range(3))
def test_random_kills_joins_and_full_crashes_come_to_the_right_answer(
    tmp_path: Path, turn: int
) -> None:
    seed = int(os.environ.get("HOLDFAST_SEED", random.randrange(1_000_000))) + turn
    print(f"seed {seed}")
    chance = random.Random(seed)
    lanes, steps = chance.choice([3, 5, 8]), 150
    with Stage(tmp_path, steps=steps, step_ms=5, lanes=lanes) as stage:
        stage.start(0, 1, 2)
        members, fresh, saved = [0, 1, 2], 3, (0, "")
        stage.move(members, restore=0)
        for _ in range(8):
            stage.wait_for_step(min(stage.step + chance.randrange(12), steps))
            act = chance.choice(["kill", "kill", "join", "checkpoint", "crash", "move"])
            print(act, members, stage.step)
            if act == "checkpoint" and stage.step < steps - 60:
                saved = checkpoint(stage)
            elif act == "crash":
                for number in members:
                    stage.workers[number].kill()
                members = []
            elif act == "kill":
                for number in chance.sample(members, chance.randrange(len(members)) or 1):
                    stage.workers[number].kill()
                    members = [member for member in members if member != number]
            while len(members) < (1 if act == "kill" else 2):
                stage.start(fresh)
                members, fresh = [*members, fresh], fresh + 1
            holds = any(stage.workers[member].step >= 0 for member in members)
            restore_, manifest = (None, "") if holds else saved
            stage.move(members, restore=restore_, manifest=manifest)
            if chance.random() < 0.7:
                stage.wait_for_adoption()
        stage.end(steps)
        assert stage.the_answer() == stage.right_answer()
