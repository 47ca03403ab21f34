"""Requests a second and p99 beside the peers: `python -m bench.serving.throughput`.

    python -m bench.serving.throughput                         # the small model, JSON, everybody
    python -m bench.serving.throughput --only ours mlserver    # ours and those whose names begin so
    python -m bench.serving.throughput --format binary         # tensors as bytes
    python -m bench.serving.throughput --model heavy           # where batching matters

One contestant after the other, each alone on the machine. For each: wrk with 32 connections, as
fast as it can; then a constant rate that all can hold, and half of what it could do itself, both
in an open loop, where a latency begins when the request was due. The load's core is fixed and the
same for all. Every answer at a constant rate is checked, number by number.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from bench.coordination.machine import BUSY_LOAD, load_average
from bench.serving import wrk
from bench.serving.contestants import (
    RESULTS,
    BentoML,
    Broken,
    Contestant,
    LitServe,
    LitServeFast,
    MLServer,
    RayServe,
    RayServeTuned,
    Triton,
    cpu_s,
    end_when_told,
    rest,
)
from bench.serving.ours import Fixed, FixedGateway, Gateway, OneReplica
from bench.serving.steady import Result, Steady

KINDS: Final[tuple[type[Contestant], ...]] = (
    OneReplica,
    Gateway,
    Fixed,
    FixedGateway,
    MLServer,
    LitServe,
    LitServeFast,
    BentoML,
    RayServe,
    RayServeTuned,
    Triton,
)
WARM_S: Final = 2
# Goals, with the gateway included.
BEST_TIMES: Final = 3.0
RAY_TIMES: Final = 25.0
FIXED_SHARE: Final = 0.85


@dataclass
class Row:
    """One contestant; the median over rounds. Latencies in ms."""

    name: str
    rate: float = math.nan  # requests a second under wrk
    wrk_p99: float = math.nan
    steady_p99: float = math.nan  # at the rate that all can hold
    half_p99: float = math.nan  # at half of its own `rate`
    half_rate: float = math.nan
    late_p99: float = math.nan  # of the generator itself
    cpu_us: float = math.nan  # of all its processes, for one request under wrk
    requests: int = 0
    bad: int = 0
    broken: str = ""
    reasons: list[str] = field(default_factory=list)


def measure(kind: type[Contestant], folder: Path, given: argparse.Namespace) -> Row:
    """One round of one contestant."""
    row = Row(kind.name)
    contestant = kind(folder, given.model)
    binary = given.format == "binary"
    try:
        contestant.start()
        contestant.await_ready(binary)
        shot, core = contestant.shot(binary), given.core

        def full(seconds: int) -> wrk.Found:
            return wrk.wrk(contestant.address, shot, seconds, folder, core, given.connections)

        full(WARM_S)
        rest(folder)
        used_s = cpu_s(folder)
        found = full(given.seconds)
        row.cpu_us = (cpu_s(folder) - used_s) / max(1, found.requests) * 1e6
        row.rate, row.wrk_p99 = found.rate, found.p99_ms
        row.requests, row.bad = found.requests, found.bad
        row.half_rate = min(found.rate / 2, given.rate_max)
        for rate, name in ((given.rate, "steady_p99"), (row.half_rate, "half_p99")):
            with Steady(contestant.address, [shot], rate, contestant.check, core=core) as load:
                time.sleep(given.seconds)
            _note(row, name, load.total)
    except Broken as error:
        row.broken = str(error)
    finally:
        contestant.close()
    return row


def _note(row: Row, name: str, result: Result) -> None:
    setattr(row, name, result.p_ms(99))
    row.requests += result.sent
    row.bad += result.failed + result.unsent
    row.reasons += [f"{count} x {why}" for why, count in result.reasons.most_common(3)]
    row.late_p99 = result.late.percentile_ms(0.99)


def merged(rows: Sequence[Row]) -> Row:
    """The median over rounds; what was wrong in any of them is kept."""
    whole = [row for row in rows if not row.broken]
    if not whole:
        return rows[0]
    found = Row(rows[0].name)
    for name in ("rate", "wrk_p99", "steady_p99", "half_p99", "half_rate", "late_p99", "cpu_us"):
        setattr(found, name, statistics.median(getattr(row, name) for row in whole))
    found.requests = sum(row.requests for row in whole)
    found.bad = sum(row.bad for row in whole)
    found.reasons = [why for row in whole for why in row.reasons]
    return found


@dataclass(frozen=True, slots=True)
class Verdict:
    what: str
    found: float
    goal: str
    reached: bool


def verdicts(rows: Sequence[Row]) -> list[Verdict]:
    """The issue's goals, as far as those who are needed for them were measured."""
    by_name = {row.name: row for row in rows if not row.broken}
    ours = by_name.get(Gateway.name)
    if ours is None:
        return []
    names = {kind.name for kind in KINDS if kind.peer and kind is not Triton}
    peers = [row for name, row in by_name.items() if name in names]
    found = []
    if peers:
        best = max(row.rate for row in peers)
        p99 = min(row.wrk_p99 for row in peers)
        steady = min(row.steady_p99 for row in peers)
        found += [
            _least("requests/s, ours to the best peer's", ours.rate / best, BEST_TIMES),
            _most("p99 under wrk, ours to the best peer's", ours.wrk_p99 / p99, 1.0),
            _most("p99 at a constant rate, ours to the best peer's", ours.steady_p99 / steady, 1.0),
        ]
    rays = [row.rate for row in peers if row.name.startswith(RayServe.name)]
    if rays:
        what = "requests/s, ours to Ray Serve's"
        default = by_name.get(RayServe.name)
        if default:
            found.append(_least(f"{what} (default)", ours.rate / default.rate, RAY_TIMES))
        tuned = by_name.get(RayServeTuned.name)
        if tuned:
            found.append(_least(f"{what} (tuned)", ours.rate / tuned.rate, RAY_TIMES))
    fixed = by_name.get(FixedGateway.name)
    if fixed:
        what = "requests/s, ours to fixed bytes behind the same Envoy"
        found.append(_least(what, ours.rate / fixed.rate, FIXED_SHARE))
    return found


def _least(what: str, found: float, goal: float) -> Verdict:
    return Verdict(what, found, f"at least {goal:g}", found >= goal)


def _most(what: str, found: float, goal: float) -> Verdict:
    return Verdict(what, found, f"below {goal:g}", found < goal)


def show(rows: Sequence[Row]) -> None:
    ours = next((row for row in rows if row.name == Gateway.name and not row.broken), None)
    print(
        f"\n{'':32}{'requests/s':>11}{'p99 wrk':>9}{'p99 same':>10}{'p99 half':>10}"
        f"{'(at/s)':>8}{'CPU us':>8}{'bad':>5}{'ours x':>8}{'p99 x':>7}"
    )
    for row in rows:
        if row.broken:
            print(f"{row.name:32}{row.broken}")
            continue
        times = (
            f"{ours.rate / row.rate:>8.2f}{ours.steady_p99 / row.steady_p99:>7.2f}" if ours else ""
        )
        print(
            f"{row.name:32}{row.rate:>11,.0f}{row.wrk_p99:>9.1f}{row.steady_p99:>10.2f}"
            f"{row.half_p99:>10.2f}{row.half_rate:>8,.0f}{row.cpu_us:>8,.0f}{row.bad:>5}{times}"
        )
        for why in row.reasons:
            print(f"    {why}")
    print()
    for one in verdicts(rows):
        word = "reached" if one.reached else "MISSED"
        print(f"{one.what:60}{one.found:>8.2f}  goal {one.goal:<14}{word}")


def chosen(given: argparse.Namespace) -> list[type[Contestant]]:
    """Those that were asked for and can be asked so."""
    found = []
    for kind in KINDS:
        plain = kind.name.lower().replace(" ", "")
        if given.only and not any(plain.startswith(word.lower()) for word in given.only):
            continue
        if given.model not in kind.models or (given.format == "binary" and not kind.binary):
            continue
        found.append(kind)
    if not found:
        names = ", ".join(kind.name.lower().replace(" ", "") for kind in KINDS)
        raise SystemExit(f"nobody can be asked so; names begin with one of --only: {names}")
    return found


def main(argv: Sequence[str] | None = None) -> int:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = options.add_argument
    add("--only", nargs="+", default=[], help="names begin so: ours fixed mlserver litserve ray …")
    add("--model", choices=["small", "heavy"], default="small")
    add("--format", choices=["json", "binary"], default="json")
    add("--rounds", type=int, default=1, help="the figures are medians over them")
    add("--seconds", type=int, default=5, help="of each measurement")
    add("--connections", type=int, default=wrk.CONNECTIONS)
    add("--rate", type=float, default=100.0, help="that all can hold")
    add("--rate-max", type=float, default=3000.0, help="of the generator in its one thread")
    add("--core", type=int, default=(os.cpu_count() or 1) - 1, help="of the load generators")
    add("--json", type=Path)
    given = options.parse_args(argv)
    if wrk.missing():
        raise SystemExit(wrk.missing())
    end_when_told()
    RESULTS.mkdir(exist_ok=True)
    load = load_average()
    print(f"{given.model} model, {given.format}, load before {load:.1f}", flush=True)
    if load > BUSY_LOAD:
        print("the machine was busy: these figures are not to be quoted")
    rounds: dict[str, list[Row]] = {}
    with tempfile.TemporaryDirectory(prefix="serving-", dir=RESULTS) as held:
        for number in range(given.rounds):
            for kind in chosen(given):
                why = kind.missing()
                row = Row(kind.name, broken=why)
                if not why:
                    row = measure(kind, Path(held, f"{kind.__name__}-{number}"), given)
                rounds.setdefault(kind.name, []).append(row)
                print(f"  {row.name}: {row.broken or f'{row.rate:,.0f}/s'}", flush=True)
    rows = [merged(found) for found in rounds.values()]
    show(rows)
    if given.json:
        plain = [asdict(row) for row in rows]
        given.json.write_text(json.dumps({"load": load, "rows": plain}, indent=2))
    return 1 if any(row.bad for row in rows if row.name.startswith("ours")) else 0


if __name__ == "__main__":
    raise SystemExit(main())
