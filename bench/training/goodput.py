"""How much is left of the throughput under kills: `python -m bench.training.goodput`.

    python -m bench.training.goodput                  # a kill every 10 s for 3 minutes, each
    python -m bench.training.goodput --seconds 60     # shorter

A random worker gets `kill -9` again and again. Goodput: samples of steps that count (a step that is
done again counts once), per second, divided by the same contestant's own rate without kills, in the
same run. A machine's speed drifts within minutes: so turns with kills and calm ones alternate. A
turn with kills lasts until all workers are back, and a calm one begins then.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.coordination.machine import load_average
from bench.training import contestants, trial
from bench.training.notes import useful
from bench.training.recovery import RESULTS, write
from bench.training.trial import Broken, Outcome

GOAL: Final = 0.9


@dataclass
class Good:
    """One contestant's figures, in samples a second."""

    name: str
    workers: int
    calm: float = 0.0
    under_kills: float = 0.0
    kills: int = 0
    broken: str = ""

    @property
    def goodput(self) -> float:
        return self.under_kills / self.calm if self.calm else 0.0

    def strike(
        self, running: contestants.Contestant, chance: random.Random, given: argparse.Namespace
    ) -> None:
        """Kill every so often, whoever lives, and stay until all is as before."""
        killed_s = time.monotonic()
        for _ in range(given.turn):
            living = [pid for pid in running.notes.living() if running.owned(pid)]
            if living:
                killed_s = time.monotonic()
                os.kill(chance.choice(living), signal.SIGKILL)
                self.kills += 1
            wait(running, given.every)
        trial.await_(
            running,
            "back to full size",
            lambda _: trial.is_full(running, killed_s),
            given.patience,
        )


@dataclass
class Spell:
    """Turns of one kind: how long they were, and how many samples of new steps they brought."""

    seconds: float = 0.0
    samples: int = 0

    def add(self, running: contestants.Contestant, turn: Callable[[], None]) -> None:
        """Count this turn, also if the contestant breaks in it."""
        begin_s = time.monotonic()
        try:
            turn()
        finally:
            end_s = time.monotonic()
            running.notes.look()
            done = running.notes.done
            known = max((one.step for one in done if one.at_s <= begin_s), default=0)
            new = [one for one in done if begin_s < one.at_s <= end_s and one.step > known]
            self.seconds += end_s - begin_s
            self.samples += useful(new)

    @property
    def rate(self) -> float:
        return self.samples / self.seconds if self.seconds else 0.0


def measure(
    contestant: type[contestants.Contestant], folder: Path, given: argparse.Namespace
) -> Good:
    workers = max(given.workers, contestant.workers_min)
    good = Good(contestant.name, workers)
    running = contestant(folder / contestant.name.replace(", ", "-"), workers)
    chance = random.Random(given.seed)
    calm, kills = Spell(), Spell()
    try:
        trial.began(running, Outcome(contestant.name, "worker", workers), given.patience)
        wait(running, given.warm)
        calm.add(running, lambda: wait(running, given.calm))
        while kills.seconds < given.seconds:
            kills.add(running, lambda: good.strike(running, chance, given))
            calm.add(running, lambda: wait(running, given.calm))
    except Broken as error:
        good.broken = str(error)
    finally:
        running.close()
    good.calm, good.under_kills = calm.rate, kills.rate
    return good


def wait(running: contestants.Contestant, seconds: float) -> None:
    end_s = time.monotonic() + seconds
    trial.await_(running, "going on", lambda _: time.monotonic() >= end_s, seconds + 60)


def main(argv: list[str] | None = None) -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--workers", type=int, default=2)
    options.add_argument("--only", nargs="+", default=["ours", "torchrun", "torchft"])
    options.add_argument("--seconds", type=float, default=180.0)
    options.add_argument("--every", type=float, default=10.0, help="seconds from kill to kill")
    options.add_argument("--warm", type=float, default=3.0)
    options.add_argument("--turn", type=int, default=3, help="kills in a turn")
    options.add_argument("--calm", type=float, default=15.0, help="seconds of a calm turn")
    options.add_argument("--patience", type=float, default=90.0)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--json", type=Path)
    given = options.parse_args(argv)
    field: dict[str, type[contestants.Contestant]] = {
        "ours": contestants.Ours,
        "torchrun": contestants.Torchrun,
        "torchft": contestants.TorchftTuned,
    }
    if missing := contestants.torchft_missing():
        print(f"without torchft: {missing}")
        del field["torchft"]
    RESULTS.mkdir(exist_ok=True)
    print(f"seed {given.seed}, load {load_average():.1f}")
    print(f"{'who':<16} {'workers':>7} {'kills':>5} {'calm /s':>9} {'kills /s':>9} goodput")
    found = []
    with tempfile.TemporaryDirectory(prefix="goodput-", dir=RESULTS) as folder:
        for name, contestant in field.items():
            if name not in given.only:
                continue
            one = measure(contestant, Path(folder), given)
            found.append(one)
            print(
                f"{one.name:<16} {one.workers:>7} {one.kills:>5} {one.calm:>9.0f} "
                f"{one.under_kills:>9.0f} {one.goodput:>7.1%} {one.broken}",
                flush=True,
            )
    for one in found:
        if one.name == "ours":
            verdict = "reached" if one.goodput >= GOAL else "MISSED"
            print(f"goodput of ours {one.goodput:.1%} (goal at least {GOAL:.0%}): {verdict}")
    if given.json:
        write(given.json, [{**vars(one), "goodput": one.goodput} for one in found])


if __name__ == "__main__":
    main()
