"""What a new version costs the requests of the old one: `python -m bench.serving.loading`.

    python -m bench.serving.loading                  # about 4 minutes
    python -m bench.serving.loading --rounds 2       # half of it
    python -m bench.serving.loading --tries 24       # up to 9 minutes, on a host that takes cores

A torch model of 109 MB on two replicas behind the gateway, under requests at a constant rate. Quiet
windows take turns with windows in which a new version is rolled out every 10 s: fetched, verified,
loaded, tried, and given all requests. The p99 of the latter beside the former, goal: at most 1.2;
and the p99 of quiet windows beside each other, which is the noise. One version is loaded before the
measurement: a replica that was just started still imports torch for its trials. A window in which
the host gave our cores to others is shown, left out, and tried again (`bench/serving/rounds.py`).

Then `rollback`, several times: from the call until the last request that was sent and got the
new version, and until the first answer of the old one. Goal: both within 100 ms. Every answer is
compared with what its version gives for this request.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from safetensors.torch import save_file

from bench.coordination.machine import BUSY_LOAD, load_average, stolen_s
from bench.serving import work
from bench.serving.checks import outputs
from bench.serving.cluster import QUICK, SMALL_SHARE, ServingCluster
from bench.serving.contestants import RESULTS, SCRIPTS, end_when_told
from bench.serving.replies import Reply, Shot, anything
from bench.serving.rounds import Turns, described
from bench.serving.scripts.experts import EXPERTS, INPUTS, Experts
from bench.serving.steady import Result, Steady
from holdfast.models.records import WEIGHTS, ModelKind
from holdfast.serve.records import ServiceSpec

NAME: Final = "experts"
REPLICAS: Final = 2
WARM_S: Final = 5.0
GOAL: Final = 1.2
ROLLBACK_MS: Final = 100.0
# After a rollback: as long as it is watched.
WATCH_S: Final = 1.0


@dataclass(frozen=True)
class Truth:
    """The check: what each version gives for each request."""

    wanted: Mapping[str, work.Array]

    def __call__(self, reply: Reply) -> str:
        wrong = anything(reply)
        if wrong:
            return wrong
        if reply.version not in self.wanted:
            return f"version {reply.version!r}, which there is not"
        wanted = self.wanted[reply.version][reply.shot : reply.shot + 1]
        if not np.allclose(outputs(reply), wanted, rtol=work.TOLERANCE, atol=work.TOLERANCE):
            return f"not what version {reply.version} gives for request {reply.shot}"
        return ""


def rows() -> work.Array:
    """One row for each expert."""
    chance = np.random.default_rng(11)
    found = chance.standard_normal((EXPERTS, INPUTS)).astype(np.float32)
    found[np.arange(EXPERTS), np.arange(EXPERTS)] = 5.0
    return found


def shots() -> list[Shot]:
    found = []
    for row in rows():
        tensor = {"name": work.INPUT, "shape": [1, INPUTS], "datatype": "FP32"}
        body = json.dumps({"inputs": [{**tensor, "data": row.tolist()}]}).encode()
        found.append(Shot(f"/v2/models/{NAME}/infer", body))
    return found


def publish(cluster: ServingCluster, count: int) -> dict[str, work.Array]:
    """So many versions, each with weights of its own; what each gives for the rows."""
    code = cluster.folder / "code"
    code.mkdir()
    shutil.copy(SCRIPTS / "experts.py", code)
    found = {}
    for number in range(count):
        torch.manual_seed(number)
        module = Experts()
        with torch.no_grad():
            module.experts.normal_(0.0, 0.03)
            wanted: work.Array = module(torch.from_numpy(rows()))["y"].numpy()
        weights = cluster.folder / f"weights-{number}"
        save_file(module.state_dict(), weights)
        files = {WEIGHTS: weights}
        version = cluster.publish(NAME, code, "experts:Experts", rows(), {}, ModelKind.TORCH, files)
        weights.unlink()
        found[str(version.number)] = wanted
    return found


class Trial:
    """The running service, its load, and the version that it serves."""

    def __init__(self, cluster: ServingCluster, load: Steady, given: argparse.Namespace) -> None:
        self.cluster, self.load, self.given = cluster, load, given
        self.current = 1

    def move(self, version: int) -> float:
        """Roll the version out; how long it took until all requests were its own."""
        began_s = time.monotonic()
        self.cluster.services.rollout(NAME, str(version))
        self.cluster.await_stable(NAME, version, REPLICAS)
        self.current = version
        return time.monotonic() - began_s

    def window(self, loads: bool, took: list[float]) -> Result:
        """One window, with loads in it or without."""
        stolen_before_s = stolen_s()
        self.load.cut()
        for _ in range(self.given.loads):
            began_s = time.monotonic()
            if loads:
                took.append(self.move(self.current + 1))
            time.sleep(max(0.0, self.given.every - (time.monotonic() - began_s)))
        found = self.load.cut()
        found.stolen_s = stolen_s() - stolen_before_s
        return found

    def rollback(self) -> tuple[float, float, float]:
        """Back to the version before: ms until the last request that was sent and got the new
        one, until that one's answer, and until the first answer of the old one."""
        new, old = self.current, self.current - 1
        self.load.cut()
        began_s = time.monotonic()
        self.cluster.services.rollback(NAME)
        time.sleep(WATCH_S)
        seen = self.load.cut().versions
        self.cluster.await_stable(NAME, old, REPLICAS)
        self.current = old
        last, first = seen.get(str(new)), seen.get(str(old))
        if first is None or last is None:
            return float("inf"), float("inf"), float("inf")
        times = (last.last_sent_s, last.last_answered_s, first.first_answered_s)
        sent_ms, answered_ms, first_ms = ((at_s - began_s) * 1000 for at_s in times)
        return sent_ms, answered_ms, first_ms


def measure(folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    cluster = ServingCluster(folder)
    try:
        cluster.start_all()
        print("publishing versions of 109 MB ...", flush=True)
        truth = Truth(publish(cluster, 2 + given.tries * given.loads))
        cluster.serve(ServiceSpec(NAME, NAME, "1", resources=SMALL_SHARE, policy=QUICK), REPLICAS)
        connections = max(16, int(given.rate / 10))
        with Steady(
            cluster.gateway, shots(), given.rate, truth, connections=connections, core=given.core
        ) as load:
            trial = Trial(cluster, load, given)
            time.sleep(WARM_S)
            trial.move(2)  # by then each replica has imported torch for its trials
            took: list[float] = []
            turns = Turns()
            turns.quiet.append(trial.window(False, took))
            print(f"   quiet       {described(turns.quiet[-1])}", flush=True)
            while len(turns.busy) < given.tries and turns.counting < given.rounds:
                turns.busy.append(trial.window(True, took))
                print(f"{len(turns.busy):2} with loads  {described(turns.busy[-1])}", flush=True)
                turns.quiet.append(trial.window(False, took))
                print(f"   quiet       {described(turns.quiet[-1])}", flush=True)
            backs = []
            for _ in range(given.rollbacks):
                backs.append(trial.rollback())
                trial.move(trial.current + 1)
        total = load.total
        return {
            **turns.document(),
            "rollout_s": took,
            "rollback_ms": backs,
            "requests": total.sent,
            "failed": total.failed,
            "reasons": dict(total.reasons),
        }
    finally:
        cluster.close()


def show(found: Mapping[str, Any]) -> None:
    print(f"\n{'':12}{'requests':>9}{'p50':>8}{'p99':>8}{'p99.9':>8}{'longest':>9}  ms")
    for name, row in (("quiet", found["quiet"]), ("with loads", found["busy"])):
        print(
            f"{name:12}{row['requests']:>9,}{row['p50_ms']:>8.2f}{row['p99_ms']:>8.2f}"
            f"{row['p999_ms']:>8.2f}{row['longest_ms']:>9.2f}"
        )
    word = "reached" if found["ratio"] <= GOAL else "MISSED"
    if not found["counting"]:
        word = "says nothing: the host took the cores in every window"
    print(f"p99 with loads to p99 without: {found['ratio']:.2f}  goal at most {GOAL}  {word}")
    print(f"p99 of every second quiet window to the others: {found['noise']:.2f} (noise)")
    print(f"windows of each kind that count: {found['counting']}")
    print(f"a rollout took {statistics.median(found['rollout_s']):.2f} s (median)")
    show_rollbacks(found["rollback_ms"])
    print(f"{found['requests']:,} requests, {found['failed']} failed {found['reasons'] or ''}")


def show_rollbacks(rollbacks: Sequence[tuple[float, float, float]]) -> None:
    if not rollbacks:
        return
    for name, place in (
        ("last request that was sent and got the new version", 0),
        ("last answer of the new version", 1),
        ("first answer of the old version", 2),
    ):
        times = [one[place] for one in rollbacks]
        print(f"rollback: {name}: {statistics.median(times):.0f} ms, worst {max(times):.0f}")
    worst = max(max(one) for one in rollbacks)
    word = "reached" if worst < ROLLBACK_MS else "MISSED"
    print(f"rollback, worst of all: {worst:.0f} ms  goal below {ROLLBACK_MS:g}  {word}")


def main(argv: Sequence[str] | None = None) -> int:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = options.add_argument
    add("--rounds", type=int, default=6, help="windows of each kind that must count")
    add(
        "--tries",
        type=int,
        help="windows with loads at most, also left out (default: twice --rounds)",
    )
    add("--loads", type=int, default=1, help="of a window")
    add("--every", type=float, default=10.0, help="seconds from load to load")
    add("--rate", type=float, default=150.0, help="requests a second")
    add("--rollbacks", type=int, default=5)
    add("--core", type=int, default=(os.cpu_count() or 1) - 1, help="of the load generator")
    add("--json", type=Path)
    given = options.parse_args(argv)
    given.tries = given.tries or 2 * given.rounds
    end_when_told()
    RESULTS.mkdir(exist_ok=True)
    load = load_average()
    print(f"{given.rate:g} requests a second, load before {load:.1f}", flush=True)
    if load > BUSY_LOAD:
        print("the machine was busy: these figures are not to be quoted")
    with tempfile.TemporaryDirectory(prefix="loading-", dir=RESULTS) as folder:
        found = measure(Path(folder), given)
    show(found)
    if given.json:
        given.json.write_text(json.dumps({"load": load, **found}, indent=2))
    return 1 if found["failed"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
