"""Blobs in a folder beside a plain copy of the same bytes with fsync.

    python -m bench.storage [--megabytes 256] [--rounds 5] [--folder DIR]

Rounds are interleaved, so that noise of the machine hits both; figures are medians. Every blob is
read back and its digest compared: a wrong answer ends the command with 1.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from holdfast.storage import open_store, put_part

CHUNK_BYTES = 4 * 1024 * 1024


def plain_write(path: Path, data: bytes) -> None:
    with path.open("wb", buffering=0) as file:
        view = memoryview(data)
        while view:
            view = view[file.write(view[:CHUNK_BYTES]) :]
        os.fsync(file.fileno())


def plain_read(path: Path) -> bytes:
    return path.read_bytes()


def seconds(action: Callable[[], object]) -> float:
    started_s = time.perf_counter()
    action()
    return time.perf_counter() - started_s


def measure(folder: Path, data: bytes, rounds: int) -> dict[str, list[float]]:
    blobs = open_store(folder / "store")
    plain = folder / "plain"
    took: dict[str, list[float]] = {}

    def note(name: str, action: Callable[[], object]) -> None:
        took.setdefault(name, []).append(seconds(action))

    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    for number in range(rounds):
        key = f"blob/{number}"
        note("write and fsync a plain file", lambda: plain_write(plain, data))
        note("put", partial(blobs.put, key, data))
        note("put_part, new", lambda: put_part(blobs, data, grace_s=0.0))
        note("put_part, there already", lambda: put_part(blobs, data))
        note("read a plain file", lambda: plain_read(plain))
        note("get, verified", partial(blobs.get, key, expect_digest=digest))
        note("SHA-256 alone", lambda: hashlib.sha256(data).digest())
        blobs.delete(key)
        plain.unlink()
    return took


def report(took: dict[str, list[float]], size_bytes: int) -> None:
    beside = {
        "put": "write and fsync a plain file",
        "put_part, new": "write and fsync a plain file",
        "get, verified": "read a plain file",
    }
    print(f"{'what':32} {'MB/s':>8}  {'worst':>8}  ratio")
    for name, times in took.items():
        middle = statistics.median(times)
        ratio = ""
        if name in beside:
            ratio = f"{statistics.median(took[beside[name]]) / middle:.2f} of the plain file"
        fast, slow = size_bytes / middle / 1e6, size_bytes / max(times) / 1e6
        print(f"{name:32} {fast:8,.0f}  {slow:8,.0f}  {ratio}")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.storage")
    parser.add_argument("--megabytes", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path.cwd())
    options = parser.parse_args(arguments)
    data = os.urandom(1_000_000) * options.megabytes
    print(
        f"{options.megabytes} MB, {options.rounds} rounds, {len(os.sched_getaffinity(0))} cores,"
        f" load {os.getloadavg()[0]:.1f}, Python {platform.python_version()}"
    )
    with tempfile.TemporaryDirectory(dir=options.folder, prefix=".bench-storage-") as folder:
        report(measure(Path(folder), data, options.rounds), len(data))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
