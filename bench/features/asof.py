"""The history of feature tables: a point-in-time join beside DuckDB's, and appending at a rate.

    python -m bench.features.asof [--rows 10000000] [--only join|append] [--folder DIR]

**join**: a history of `--rows` rows of `--keys` keys over thirty days, asked for `--entities` keys
and times. Ours reads the Delta table (`history`, about `--memory-mb` of it at a time); DuckDB joins
the same files (`ASOF LEFT JOIN`, `memory_limit` of the same size), and polars' own `join_asof`, all
of it in memory, stands beside. Each runs in a process of its own; the most memory that it had is
what the system says. The answers must be equal.

**append**: rows in commits of `--batch`, each with its offset (`HistoryWriter`), while another
process merges and tidies. Each commit is timed: the last hundred must not be slower than the first.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import resource
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl

from holdfast.features import Table
from holdfast.features.history import HistoryWriter, Lake, SourceRows, history, upkeep
from holdfast.features.history.shape import frame_of
from holdfast.features.rows import RowVersions

DAY_US: Final = 86_400_000_000
DAYS: Final = 30
BEGIN_US: Final = 1_704_067_200_000_000  # 2024-01-01
CHUNK: Final = 1_000_000
GOAL_ROWS_PER_MINUTE: Final = 1_000_000
TABLE: Final = Table(
    "drivers",
    key={"driver_id": "int64"},
    columns={"trips": "int64", "rating": "float32", "score": "float64", "city": "string"},
)
COLUMNS: Final = ["trips", "rating", "score", "city"]
CITIES: Final = np.array([f"city-{number}" for number in range(500)])


@dataclass(frozen=True)
class Told:
    """What one contestant took: seconds, seconds of all cores, the most memory, and its answer."""

    name: str
    wall_s: float
    cpu_s: float
    peak_mb: float
    answer: str


def rows(first: int, count: int, keys: int, begin_us: int, span_us: int) -> pl.DataFrame:
    """Rows whose times lie in this span, the same whenever they are made."""
    chance = np.random.default_rng(first)
    at_us = begin_us + chance.integers(0, span_us, count)
    versions = RowVersions.of(at_us, np.full(count, 7), np.arange(first, first + count))
    columns = {
        "trips": chance.integers(0, 1_000, count),
        "rating": chance.random(count, np.float32),
        "score": chance.random(count),
        "city": pl.Series(CITIES[chance.integers(0, len(CITIES), count)]),
    }
    ids = {"driver_id": chance.integers(0, keys, count)}
    return frame_of(TABLE, ids, versions, columns, arrived_us=at_us)


# --- join -----------------------------------------------------------------------------------------


def fill(store: Path, count: int, keys: int) -> float:
    """A history of so many rows, in the order of time; how long it took."""
    began_s = time.perf_counter()
    lake = Lake(store, TABLE)
    lake.create()
    for first in range(0, count, CHUNK):
        part = min(CHUNK, count - first)
        begin_us = BEGIN_US + DAYS * DAY_US * first // count
        end_us = BEGIN_US + DAYS * DAY_US * (first + part) // count
        lake.append(rows(first, part, keys, begin_us, end_us - begin_us))
    upkeep.tend(lake)
    return time.perf_counter() - began_s


def entities(path: Path, count: int, keys: int) -> None:
    chance = np.random.default_rng(1)
    at_us = BEGIN_US + chance.integers(0, DAYS * DAY_US, count)
    frame = pl.DataFrame({"row": np.arange(count), "driver_id": chance.integers(0, keys, count)})
    at = pl.Series("at", at_us).cast(pl.Datetime("us", "UTC"))
    frame.with_columns(at).write_parquet(path)


def by_holdfast(store: Path, asked: Path, memory_mb: int, out: Path) -> None:
    lake = Lake(store, TABLE)
    found = history(lake, pl.read_parquet(asked), COLUMNS, memory_bytes=memory_mb << 20)
    found.frame.write_parquet(out)


def by_duckdb(store: Path, asked: Path, memory_mb: int, out: Path) -> None:
    import duckdb  # noqa: PLC0415 - only its own process has it

    lake = Lake(store, TABLE)
    files = [lake.place.uri_of(path) for path in lake.log().files["path"]]
    base = duckdb.connect()
    base.execute(f"SET memory_limit='{memory_mb}MB'")
    base.execute(f"SET temp_directory='{out.parent}'")
    base.execute(f"SET threads={len(os.sched_getaffinity(0))}")
    names = ", ".join(f"h.{name}" for name in COLUMNS)
    base.execute(
        f"""COPY (SELECT e.*, {names} FROM read_parquet('{asked}') e
        ASOF LEFT JOIN read_parquet({files}, hive_partitioning=false) h
        ON e.driver_id = h.driver_id AND e.at >= h.at) TO '{out}' (FORMAT parquet)"""
    )


def by_polars(store: Path, asked: Path, memory_mb: int, out: Path) -> None:
    lake = Lake(store, TABLE)
    names = ["driver_id", "at", "_writer", "_sequence", *COLUMNS]
    found = lake.scan(lake.log(), names).collect()
    found = found.sort("driver_id", "at", "_writer", "_sequence").drop("_writer", "_sequence")
    wanted = pl.read_parquet(asked).sort("driver_id", "at")
    joined = wanted.join_asof(found, on="at", by="driver_id", check_sortedness=False)
    joined.sort("row").write_parquet(out)


CONTESTANTS: Final[dict[str, Callable[[Path, Path, int, Path], None]]] = {
    "holdfast": by_holdfast,
    "duckdb": by_duckdb,
    "polars join_asof": by_polars,
}


def run_one(name: str, store: str, asked: str, memory_mb: int, out: str, told: Any) -> None:
    """In a process of its own."""
    before = resource.getrusage(resource.RUSAGE_SELF)
    began_s = time.perf_counter()
    try:
        CONTESTANTS[name](Path(store), Path(asked), memory_mb, Path(out))
    except Exception as error:
        told.put({"error": f"{type(error).__name__}: {str(error)[:200]}"})
        return
    wall_s = time.perf_counter() - began_s
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    told.put({"wall_s": wall_s, "cpu_s": cpu_s, "peak_mb": after.ru_maxrss / 1024})


def measured(name: str, store: Path, asked: Path, memory_mb: int, out: Path) -> Told | str:
    """What it took; the error's words if it failed."""
    spawn = multiprocessing.get_context("spawn")
    told = spawn.Queue()
    given = (name, str(store), str(asked), memory_mb, str(out), told)
    process = spawn.Process(target=run_one, args=given)
    process.start()
    process.join()
    found = told.get(timeout=10) if process.exitcode == 0 else {"error": f"{process.exitcode}"}
    if "error" in found:
        return str(found["error"])
    answer = pl.read_parquet(out).sort("row").select("row", *COLUMNS)
    out.unlink()
    return Told(name, answer=str(answer.hash_rows(1).sum()), **found)


def join(given: argparse.Namespace, folder: Path) -> tuple[list[dict[str, Any]], bool]:
    store, asked = folder / "store", folder / "entities.parquet"
    filled_s = fill(store, given.rows, given.keys)
    entities(asked, given.entities, given.keys)
    size_mb = sum(path.stat().st_size for path in store.rglob("*.parquet")) / 1e6
    say(f"{given.rows:,} rows, {size_mb:,.0f} MB, written in {filled_s:.1f} s")
    shown: list[dict[str, Any]] = []
    answers: set[str] = set()
    for number in range(given.rounds):
        for name in given.contestants:
            told = measured(name, store, asked, given.memory_mb, folder / "answer.parquet")
            if isinstance(told, str):
                say(f"{name:18} failed: {told}")
                shown.append({"name": name, "round": number, "error": told})
                continue
            answers.add(told.answer)
            say(
                f"{name:18} {told.wall_s:8.2f} s  {told.cpu_s:8.2f} s of all cores"
                f"  {told.peak_mb:8,.0f} MB at most"
            )
            shown.append({**told.__dict__, "round": number})
    return shown, len(answers) == 1


# --- append ---------------------------------------------------------------------------------------


def tend(store: str, over: Any) -> None:
    """What the job of upkeep does, in a process of its own."""
    lake = Lake(store, TABLE)
    while not over.wait(1.0):
        upkeep.tend(lake)


def append(given: argparse.Namespace, folder: Path) -> tuple[list[dict[str, Any]], bool]:
    store = folder / "appended"
    lake = Lake(store, TABLE)
    lake.create()
    spawn = multiprocessing.get_context("spawn")
    over = spawn.Event()
    helper = spawn.Process(target=tend, args=(str(store), over))
    helper.start()
    writer = HistoryWriter(lake, "topic:drivers")
    took: list[float] = []
    making_s = 0.0
    began_s = time.perf_counter()
    # An hour of events, so that one day grows: what a topic gives.
    for first in range(0, given.append_rows, given.batch):
        count = min(given.batch, given.append_rows - first)
        made_s = time.perf_counter()
        frame = rows(first, count, given.keys, BEGIN_US + first, 3_600_000_000)
        making_s += time.perf_counter() - made_s
        offsets = np.arange(first, first + count)
        batch = SourceRows(frame, np.zeros(count, np.int64), offsets, {0: first + count})
        begun_s = time.perf_counter()
        writer.commit(batch)
        took.append(time.perf_counter() - begun_s)
    wall_s = time.perf_counter() - began_s
    over.set()
    helper.join()
    status = lake.status()
    log = lake.log()
    known = lake.collect(lake.scan(log, ["_sequence"]))
    figures = {
        "rows": given.append_rows,
        "commits": len(took),
        "rows_per_minute": given.append_rows / (wall_s - making_s) * 60,
        "first_ms": 1e3 * statistics.median(took[:100]),
        "last_ms": 1e3 * statistics.median(took[-100:]),
        "p99_ms": 1e3 * sorted(took)[int(0.99 * (len(took) - 1))],
        "versions": log.version,
        "files": status.files,
    }
    say("  ".join(f"{name} {value:,.1f}" for name, value in figures.items()))
    is_right = known["_sequence"].n_unique() == known.height == given.append_rows
    reached = figures["rows_per_minute"] >= GOAL_ROWS_PER_MINUTE
    say(f"a million rows a minute: {'reached' if reached else 'missed'}")
    return [figures], is_right


# --- the command ----------------------------------------------------------------------------------


def say(line: str) -> None:
    print(line, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """0; 1 where an answer is wrong."""
    parser = argparse.ArgumentParser(prog="python -m bench.features.asof")
    parser.add_argument("--rows", type=int, default=10_000_000, help="of the history")
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--entities", type=int, default=1_000_000)
    parser.add_argument("--memory-mb", type=int, default=1_024)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--append-rows", type=int, default=2_000_000)
    parser.add_argument("--batch", type=int, default=5_000, help="rows of one commit")
    parser.add_argument("--only", choices=("join", "append"))
    parser.add_argument(
        "--contestants", nargs="+", choices=list(CONTESTANTS), default=list(CONTESTANTS)
    )
    parser.add_argument("--folder", type=Path, default=Path.cwd(), help="on the disk in question")
    parser.add_argument("--json", type=Path, help="write every figure to this file")
    given = parser.parse_args(arguments)
    load = os.getloadavg()[0]
    say(
        f"{len(os.sched_getaffinity(0))} cores, load {load:.1f}, Python"
        f" {platform.python_version()}, polars {pl.__version__}"
    )
    folder = Path(tempfile.mkdtemp(dir=given.folder, prefix=".bench-history-"))
    found: dict[str, Any] = {}
    right = True
    try:
        for name, section in (("join", join), ("append", append)):
            if given.only in (None, name):
                say(f"-- {name}")
                found[name], is_right = section(given, folder)
                right = right and is_right
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if given.json:
        given.json.write_text(json.dumps({"load": load, **found}, indent=1))
    if not right:
        say("WRONG: the answers differ")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
