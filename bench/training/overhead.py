"""What a step costs beside plain DDP, without failures: `python -m bench.training.overhead`.

    python -m bench.training.overhead                       # 1, 10 and 50 million parameters
    python -m bench.training.overhead --parameters 1000000  # one size

Ours runs under `holdfast run`, DDP (over Gloo) under torchrun, both with 2 workers of one thread,
the same model, batch and optimizer. Both are there all the time and take turns: a block of steps of
the one, then of the other, while its workers wait. Ours makes no checkpoint, and neither does DDP.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench.coordination.machine import load_average
from bench.training import trial
from bench.training.contestants import Contestant, Ours, Torchrun
from bench.training.notes import Reader
from bench.training.recovery import RESULTS, write

GOAL: Final = 1.05
WARM_BLOCKS: Final = 1
SKIPPED: Final = 2  # steps at the beginning of a block: caches are the other one's


class Calm(Ours):
    """Without checkpoints on the way."""

    options = ("--checkpoint-every", "never")


class Ddp(Torchrun):
    name = "DDP"
    save_every = 0


def measure(parameters: int, folder: Path, given: argparse.Namespace) -> dict[str, float]:
    """Step times in ms and peak memory in MB, the median over blocks, the slowest worker's."""
    steps = given.block * (given.blocks + WARM_BLOCKS)
    words = ["--parameters", str(parameters), "--block", str(given.block), "--steps", str(steps)]
    words += ["--batch", str(given.batch)]
    running: list[Contestant] = []
    try:
        for kind in (Calm, Ddp):
            running.append(kind(folder / kind.name, given.workers, words))
            trial.await_(running[-1], "workers", _all_there, given.patience)
        for block in range(given.blocks + WARM_BLOCKS):
            for one in running:
                _open(one, block + 1)
                trial.await_(
                    one, f"block {block}", _through((block + 1) * given.block), given.patience
                )
        for one in running:
            trial.await_(one, "the end", _all_ended, given.patience)
        found: dict[str, float] = {}
        for one in running:
            times = block_times(one.notes, given.block)
            found[f"{one.name} ms"] = statistics.median(times[WARM_BLOCKS:])
            found[f"{one.name} CPU"] = statistics.median(block_cpu(one.notes, given.block))
            found[f"{one.name} MB"] = max(last.peak_kb for last in one.notes.last) / 1000
        return found
    finally:
        for one in running:
            one.close()


def block_times(notes: Reader, block: int) -> list[float]:
    """For each block the mean time of its steps, in ms; a step is over when all have noted it."""
    over: dict[int, float] = {}
    for one in notes.done:
        over[one.step] = max(over.get(one.step, 0.0), one.at_s)
    found = []
    for number in range(max(over) // block):
        first, last = number * block + SKIPPED, (number + 1) * block
        found.append((over[last] - over[first]) / (last - first) * 1000)
    return found


def block_cpu(notes: Reader, block: int) -> list[float]:
    """For each block after the first what a step has cost all workers, in ms of a processor. This
    hardly depends on who else is busy."""
    used = {(one.pid, one.step): one.cpu_s for one in notes.done}
    pids = {one.pid for one in notes.done}
    found = []
    for number in range(WARM_BLOCKS, notes.step // block):
        first, last = number * block + SKIPPED, (number + 1) * block
        cpu_s = sum(used[pid, last] - used[pid, first] for pid in pids)
        found.append(cpu_s / (last - first) * 1000)
    return found


def _open(contestant: Contestant, gate: int) -> None:
    unfinished = contestant.notes.folder / "gate.tmp"
    unfinished.write_text(str(gate))
    unfinished.rename(contestant.notes.folder / "gate")


def _all_there(notes: Reader) -> bool:
    """A worker has made its file when all is imported and made."""
    return len(list(notes.folder.glob("*.notes"))) >= 2


def _all_ended(notes: Reader) -> bool:
    return len(notes.last) >= 2


def _through(step: int) -> trial.Ready:
    def through(notes: Reader) -> bool:
        return len({one.pid for one in notes.done if one.step == step}) >= 2

    return through


def main(argv: Sequence[str] | None = None) -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--parameters", type=int, nargs="+", default=[10**6, 10**7, 5 * 10**7])
    options.add_argument("--batch", type=int, default=32, help="samples of one worker in a step")
    options.add_argument("--blocks", type=int, default=8)
    options.add_argument("--block", type=int, default=20, help="steps of a turn")
    options.add_argument("--patience", type=float, default=120.0)
    options.add_argument("--json", type=Path)
    given = options.parse_args(argv)
    given.workers = 2
    RESULTS.mkdir(exist_ok=True)
    print(f"load {load_average():.1f}, {given.workers} workers, {given.batch} samples each")
    print(" parameters   ours ms    DDP ms  ratio  ours CPU   DDP CPU  ours MB  DDP MB")
    rows = []
    with tempfile.TemporaryDirectory(prefix="overhead-", dir=RESULTS) as folder:
        for parameters in given.parameters:
            found = measure(parameters, Path(folder, str(parameters)), given)
            ratio = found["ours ms"] / found["DDP ms"]
            rows.append({"parameters": parameters, **found, "ratio": ratio})
            print(
                f"{parameters:>11} {found['ours ms']:>9.2f} {found['DDP ms']:>9.2f} {ratio:>6.3f} "
                f"{found['ours CPU']:>9.2f} {found['DDP CPU']:>9.2f} "
                f"{found['ours MB']:>8.0f} {found['DDP MB']:>7.0f}  "
                f"{'reached' if ratio <= GOAL else f'MISSED (goal at most {GOAL})'}",
                flush=True,
            )
    if given.json:
        write(given.json, rows)


if __name__ == "__main__":
    main()
