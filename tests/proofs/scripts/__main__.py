"""python -m tests.proofs.scripts --seed 7 [--workers 2 3 5] [--jobs 2] [--fuzz 200] [NAME ...]"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from tests.conformance.running import SCRIPTS, Outcome, Script, alone, complaint, on_workers
from tests.faults.training_stage import Host, hosted
from tests.proofs.scripts.fuzz import script


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="scripts of tests/conformance; without any: all")
    parser.add_argument("--workers", nargs="+", type=int, default=[2, 3, 5])
    parser.add_argument("--fuzz", type=int, default=0, help="so many random scripts, nothing else")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--calm", action="store_true", help="kill nobody")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="scripts side by side")
    options = parser.parse_args()
    began, wrong, count = time.monotonic(), [], 0
    with tempfile.TemporaryDirectory() as folder:
        for path, found in _all(_paths(options, Path(folder)), Path(folder), options):
            count += 1
            print(f"{path.stem:<48} {'wrong' if found else 'right'}", flush=True)
            if found:
                print("\n".join(found), flush=True)
            wrong += [f"--- {path.stem}: {each}" for each in found]
            if found and options.fuzz:
                print(path.read_text())
    print("\n".join(wrong))
    print(f"seed {options.seed}: {count} scripts, {time.monotonic() - began:.0f} s")
    print(f"{count - len({each.split(':')[0] for each in wrong})} passed, {len(wrong)} failed")
    return 1 if wrong else 0


def _all(
    paths: Sequence[Path], folder: Path, options: argparse.Namespace
) -> Iterator[tuple[Path, list[str]]]:
    """Each script with what is wrong with it, in their order. A host belongs to one thread."""
    hosts = threading.local()
    with ExitStack() as held, ThreadPoolExecutor(options.jobs) as threads:

        def tried(path: Path) -> tuple[Path, list[str]]:
            if not hasattr(hosts, "own"):
                hosts.own = held.enter_context(hosted("tests.conformance.host"))
            return path, _tried(Script.read(path), hosts.own, folder / path.stem, options)

        yield from threads.map(tried, paths)


def _paths(options: argparse.Namespace, folder: Path) -> list[Path]:
    if not options.fuzz:
        chosen = [SCRIPTS / f"{name}.py" for name in options.names]
        return chosen or sorted(SCRIPTS.glob("*.py"))
    found = []
    for seed in range(options.seed, options.seed + options.fuzz):
        found.append(folder / f"random_{seed}.py")
        found[-1].write_text(script(seed))
    return found


def _tried(given: Script, host: Host, folder: Path, options: argparse.Namespace) -> list[str]:
    """What is wrong with it, alone and on each number of workers."""
    right = alone(given, host, folder / "alone")
    wrong = [complaint(given, right, right, "alone")]
    chance = random.Random(f"{options.seed} {given.path.stem}")
    numbers = [chance.choice(options.workers)] if options.fuzz else options.workers
    for workers in numbers:
        kills = None if options.calm or workers == 1 else chance
        found = _found(given, host, folder / str(workers), workers, kills)
        where = f"on {workers} workers"
        if isinstance(found, str):
            wrong.append(found)
        elif options.fuzz and found.failed != right.failed:
            wrong.append(f"{where}: failed: {found.failed}, alone: {right.failed}")
        else:
            wrong.append(complaint(given, right, found, where))
    return [each for each in wrong if each]


def _found(
    given: Script, host: Host, folder: Path, workers: int, kills: random.Random | None
) -> Outcome | str:
    try:
        return on_workers(given, host, folder, workers, kills=kills)
    except AssertionError as error:
        return f"on {workers} workers: {error}"


if __name__ == "__main__":
    sys.exit(main())
