"""The long proof: random schedules of kills, joins, leaves, pauses and full crashes; equal bits.

    python -m tests.faults.proof_training --schedules 30 --seed 7

Each schedule trains one of the models under real signals and compares the SHA-256 of weights and
optimizer state with that of an undisturbed process alone; and it checks from the workers' own logs
that every sample of every epoch was counted once. A failing one is repeated with --only NUMBER.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from tests.faults.training_stage import Host, TrainingStage, consumed, hosted

EPOCHS = 5
SAMPLES = 250
MODELS = ("mlp", "convnet", "transformer")
ACTS = ("kill", "kill", "kill_two", "join", "leave", "pause", "crash", "checkpoint", "late")


class Schedule:
    """One training and what is done to it."""

    def __init__(self, number: int, seed: int, host: Host, folder: Path) -> None:
        self._chance = random.Random(f"{seed}-{number}")
        self.model = self._chance.choice(MODELS)
        self.log = folder / "log"
        self.stage = TrainingStage(
            folder / "stage",
            host,
            lanes=self._chance.choice((5, 8)),
            more={"HOLDFAST_SAMPLE_LOG": str(self.log)},
        )
        self.stage.options = {"model": self.model, "samples": SAMPLES, "epochs": EPOCHS}
        self.did: list[str] = []
        self._fresh = 0
        self._committed = (0, "")

    def run(self, right: dict[str, Any], acts: int) -> None:
        stage, chance = self.stage, self._chance
        with stage:
            stage.move(self._new(chance.randint(1, 4)), restore=0)
            for _ in range(acts):
                time.sleep(chance.uniform(0.0, 0.25))  # pause: a fault comes at any moment
                if all(stage.workers[n].said.get("ending") for n in stage.members):
                    break
                act = chance.choice(ACTS)
                self.did.append(f"{act}@{stage.step}")
                getattr(self, f"_{act}")()
            answers = stage.answers()
        assert {answer["digest"] for answer in answers} == {right["digest"]}
        assert {json.dumps(answer["metrics"]) for answer in answers} == {
            json.dumps(right["metrics"])
        }
        self._count_samples()

    def _count_samples(self) -> None:
        batches: dict[tuple[int, int], set[str]] = defaultdict(set)
        for row in consumed(self.log):
            batches[row["step"], row["lane"]].add(json.dumps([row["epoch"], row["samples"]]))
        assert all(len(found) == 1 for found in batches.values())
        found = [json.loads(next(iter(each))) for each in batches.values()]
        for epoch in range(EPOCHS):
            seen = Counter(s for at, samples in found if at == epoch for s in samples)
            assert seen == Counter(range(SAMPLES)), epoch

    # --- acts ----------------------------------------------------------------------------------

    def _new(self, count: int) -> list[int]:
        numbers = list(range(self._fresh, self._fresh + count))
        self._fresh += count
        self.stage.start(*numbers)
        return numbers

    def _without(self, gone: list[int], more: list[int]) -> None:
        left = [n for n in self.stage.members if n not in gone]
        if not left and not more:
            more = self._new(1)
        self._next(left, left + more)
        self.stage.give()

    def _next(self, left: list[int], members: list[int]) -> None:
        """As the coordinator does it: when nobody is known to hold a state, the view says where to
        begin."""
        if any(self.stage.workers[number].step >= 0 for number in left):
            self.stage.next_view(members)
        else:
            step, manifest = self._committed
            self.stage.next_view(members, restore=step, manifest=manifest)

    def _kill(self, count: int = 1) -> None:
        members = self.stage.members
        gone = self._chance.sample(members, min(count, len(members)))
        for number in gone:
            self.stage.workers[number].kill()
        more = self._new(1) if self._chance.random() < 0.6 else []
        self._without(gone, more)

    def _kill_two(self) -> None:
        self._kill(2)

    def _join(self) -> None:
        if len(self.stage.members) < 5:
            self._without([], self._new(1))

    def _leave(self) -> None:
        members = self.stage.members
        if len(members) > 1:
            self.stage.wait_for_adoption()  # nobody leaves before those who stay hold the state
            self._without([self._chance.choice(members)], [])

    def _pause(self) -> None:
        members = self.stage.members
        if len(members) > 1:
            number = self._chance.choice(members)
            self.stage.workers[number].signal(signal.SIGSTOP)
            time.sleep(self._chance.uniform(0.0, 0.3))  # pause: the fault
            self._without([number], [])  # the control plane gives it up, and then it is killed
            self.stage.workers[number].kill()

    def _late(self) -> None:
        """A view that one member hears of later than the others."""
        members = self.stage.members
        if len(members) > 1:
            gone, late = self._chance.sample(members, 2)
            self.stage.workers[gone].kill()
            left = [n for n in members if n != gone]
            self._next(left, left)
            for number in self.stage.members:
                if number != late:
                    self.stage.give(number)
            time.sleep(self._chance.uniform(0.0, 0.2))  # pause: one hears of it later
            self.stage.give()

    def _crash(self) -> None:
        for number in self.stage.members:
            self.stage.workers[number].kill()
        self._without(self.stage.members, self._new(self._chance.randint(1, 4)))

    def _checkpoint(self) -> None:
        self.stage.wait_for_adoption()
        step = self.stage.step + 2
        shares = self.stage.shares(self.stage.checkpoint(step))
        if all(parts is not None for parts in shares.values()):
            self._committed = step, self.stage.commit_parts(step, shares)


def prove(schedules: range, seed: int, acts: int = 6) -> list[str]:
    """The failures, told."""
    failures: list[str] = []
    rights: dict[tuple[str, int], dict[str, Any]] = {}
    with hosted() as host, tempfile.TemporaryDirectory() as top:
        for number in schedules:
            begun_s = time.monotonic()
            schedule = Schedule(number, seed, host, Path(top) / str(number))
            key = (schedule.model, schedule.stage.lanes)
            try:
                if key not in rights:
                    rights[key] = schedule.stage.alone()
                    for path in schedule.log.iterdir():
                        path.unlink()
                schedule.run(rights[key], acts)
            except AssertionError as error:
                failures.append(f"--seed {seed} --only {number}: {error}")
            verdict = "FAILED" if failures and f"--only {number}:" in failures[-1] else "equal"
            took = f"{time.monotonic() - begun_s:.1f} s"
            print(f"{number:3} {verdict} {key} {took} {' '.join(schedule.did)}", flush=True)
    return failures


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--schedules", type=int, default=30)
    options.add_argument("--seed", type=int, default=random.randrange(10**6))
    options.add_argument("--only", type=int, help="this schedule of the seed")
    options.add_argument("--acts", type=int, default=6)
    given = options.parse_args()
    print(f"seed {given.seed}")
    which = range(given.schedules) if given.only is None else range(given.only, given.only + 1)
    failures = prove(which, given.seed, given.acts)
    print("\n".join(failures) or f"{len(which)} schedules, all with equal bits")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
