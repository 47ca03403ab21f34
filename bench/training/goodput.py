"""How much is left of the throughput under kills: `python -m bench.training.goodput`.

    python -m bench.training.goodput                  # a kill every 10 s for 3 minutes, each
    python -m bench.training.goodput --seconds 60     # shorter

A random worker gets `kill -9` again and again. Goodput: samples of steps that count (a step that is
done again counts once), per second, divided by the same contestant's own rate before the first
kill, in the same run.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import tempfile
import time
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


def measure(
    contestant: type[contestants.Contestant], folder: Path, given: argparse.Namespace
) -> Good:
    workers = max(given.workers, contestant.workers_min)
    good = Good(contestant.name, workers)
    running = contestant(folder / contestant.name.replace(", ", "-"), workers)
    try:
        trial.began(running, Outcome(contestant.name, "worker", workers), given.patience)
        wait(running, given.warm)
        begin_s = time.monotonic()
        wait(running, given.calm)
        good.calm = rate(running, begin_s, time.monotonic())
        strike(running, good, given)
    except Broken as error:
        good.broken = str(error)
    finally:
        running.close()
    return good


def strike(running: contestants.Contestant, good: Good, given: argparse.Namespace) -> None:
    """Kill every so often, whoever lives; then read what came of it."""
    chance, begin_s = random.Random(given.seed), time.monotonic()
    end_s, next_s = begin_s + given.seconds, begin_s
    try:
        while time.monotonic() < end_s:
            wait(running, max(0.0, next_s - time.monotonic()))
            next_s += given.every
            living = [pid for pid in running.notes.living() if running.owned(pid)]
            if living:
                os.kill(chance.choice(living), signal.SIGKILL)
                good.kills += 1
            wait(running, max(0.0, min(next_s, end_s) - time.monotonic()))
    finally:
        running.notes.look()
        good.under_kills = rate(running, begin_s, end_s)


def wait(running: contestants.Contestant, seconds: float) -> None:
    end_s = time.monotonic() + seconds
    trial.await_(running, "going on", lambda _: time.monotonic() >= end_s, seconds + 60)


def rate(running: contestants.Contestant, begin_s: float, end_s: float) -> float:
    """Samples of the steps that were new in this time, per second."""
    done = running.notes.done
    known = max((one.step for one in done if one.at_s <= begin_s), default=0)
    new = [one for one in done if begin_s < one.at_s <= end_s and one.step > known]
    return useful(new) / (end_s - begin_s)


def main(argv: list[str] | None = None) -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--workers", type=int, default=2)
    options.add_argument("--only", nargs="+", default=["ours", "torchrun", "torchft"])
    options.add_argument("--seconds", type=float, default=180.0)
    options.add_argument("--every", type=float, default=10.0, help="seconds from kill to kill")
    options.add_argument("--warm", type=float, default=3.0)
    options.add_argument("--calm", type=float, default=15.0, help="seconds without kills, before")
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
