"""Try the mutants: each must make its test fail.

A mutant whose text is no longer in its file, or whose test fails without it, is an error too.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.mutants import MUTANTS
from tests.mutants.mutant import Mutant

ROOT: Final = Path(__file__).parents[2]
_TREES: Final = ("holdfast", "tests", "simulation", "examples")
_FILES: Final = ("pyproject.toml",)
TEST_S: Final = 900.0
# pytest's own: tests ran, and some failed.
_FAILED: Final = 1


def main(arguments: Sequence[str] | None = None) -> int:
    """0: every one was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="those with one of these in their names; else all")
    parser.add_argument("--list", action="store_true", help="only say which there are")
    options = parser.parse_args(arguments)
    wanted = [
        mutant
        for mutant in MUTANTS
        if not options.names or any(name in mutant.name for name in options.names)
    ]
    if options.list or not wanted:
        print("\n".join(f"{mutant.name:<44} {mutant.file}" for mutant in wanted or MUTANTS))
        return 0 if wanted else 2
    with tempfile.TemporaryDirectory(prefix="holdfast-mutants-") as folder:
        return 1 if _tried(wanted, Path(folder)) else 0


def _tried(wanted: Sequence[Mutant], tree: Path) -> int:
    """How many were not found, or could not be tried."""
    for name in _TREES:
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in _FILES:
        shutil.copy(ROOT / name, tree / name)
    escaped, sound = 0, dict[str, bool]()
    for mutant in wanted:
        begun_s = time.monotonic()
        if mutant.test not in sound:
            sound[mutant.test] = _run(tree, mutant.test) == 0
        verdict = _judge(mutant, tree) if sound[mutant.test] else "ITS TEST FAILS WITHOUT IT"
        escaped += verdict != "found"
        took_s = time.monotonic() - begun_s
        print(f"{mutant.name:<44} {verdict:<26} {took_s:6.1f} s", flush=True)
    print(f"{len(wanted)} mutants, {f'{escaped} NOT FOUND' if escaped else 'all found'}")
    return escaped


def _judge(mutant: Mutant, tree: Path) -> str:
    path = tree / mutant.file
    good = path.read_text()
    if good.count(mutant.old) != 1:
        return f"ITS TEXT IS THERE {good.count(mutant.old)} TIMES"
    path.write_text(good.replace(mutant.old, mutant.new))
    try:
        status = _run(tree, mutant.test)
    finally:
        path.write_text(good)
    if status == 0:
        return "NOT FOUND"
    return "found" if status == _FAILED else f"PYTEST ENDED WITH {status}"


def _run(tree: Path, test: str) -> int:
    """pytest's status for this test, in that tree."""
    command = [sys.executable, "-m", "pytest", "-n", "0", "-x", "-q", "-p", "no:cacheprovider"]
    # Nothing compiled is kept: a file may change twice within the second that its time shows.
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [*command, *test.split()],
        cwd=tree,
        env=environment,
        capture_output=True,
        check=False,
        timeout=TEST_S,
    )
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
