"""A worker that is ten times slower than the rest: steps with its lanes lent, and without.

    python -m bench.training.slow_worker [--workers 4] [--lane-ms 20] [--times 10] [--steps 50]

Each run is `holdfast run` of this file, one after the other. A lane is a pause of so many ms (so
that the cores of this machine do not count) and a small model; worker 1 pauses so many times as
long. Shown is the median of the steps behind the first ten, as worker 0 sees them.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

from holdfast import train
from holdfast.train.sums import lending

ROOT = Path(__file__).resolve().parents[2]
LANES = 8


def trained(given: argparse.Namespace) -> None:
    """The script, in a worker."""
    if given.alone:
        lending.SLOW_RATIO = float("inf")  # type: ignore[misc]
    slow = os.environ.get("HOLDFAST_WORKER") == "1"
    pause_s = given.lane_ms / 1000 * (given.times if slow else 1)

    def main(run: train.Run) -> None:
        model = nn.Linear(32, 32)
        run.track(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.01))
        data = TensorDataset(torch.randn(LANES * given.steps, 32))
        ends: list[float] = []
        run.every(1, lambda _: ends.append(time.perf_counter()))
        for batch in run.batches(data, lane_batch=1):
            time.sleep(pause_s)
            run.step(model(batch[0]).square().mean())
        took = [(b - a) * 1000 for a, b in pairwise(ends[10:])]
        parts = (each.detach().numpy().tobytes() for each in model.parameters())
        sha = hashlib.sha256(b"".join(parts)).hexdigest()[:12]
        print("ROW " + json.dumps({"ms": statistics.median(took), "sha": sha}), flush=True)

    train.launch(main, lanes=LANES)


def run(given: argparse.Namespace, *, alone: bool) -> list[dict[str, object]]:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "holdfast", "run", "--workers", str(given.workers)]
        command += ["--lanes", str(LANES), "--cpu", "0.1", "--checkpoint-every", "never"]
        command += ["--dir", folder, str(Path(__file__)), "--", "--script"]
        command += ["--lane-ms", str(given.lane_ms), "--times", str(given.times)]
        command += ["--steps", str(given.steps), *(["--alone"] if alone else [])]
        done = subprocess.run(
            command,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            cwd=ROOT,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=300,
            check=False,
        )
    rows = [json.loads(found) for found in re.findall(r"ROW (\{.*\})", done.stdout)]
    if len(rows) != given.workers:
        raise SystemExit(f"{len(rows)} of {given.workers} came to an end:\n{done.stdout[-2000:]}")
    return rows


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--workers", type=int, default=4)
    options.add_argument("--lane-ms", type=float, default=20.0)
    options.add_argument("--times", type=float, default=10.0)
    options.add_argument("--steps", type=int, default=50)
    options.add_argument("--script", action="store_true", help=argparse.SUPPRESS)
    options.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.script:
        trained(given)
        return
    for times in (1.0, given.times):
        for alone in (True, False):
            rows = run(argparse.Namespace(**{**vars(given), "times": times}), alone=alone)
            shas = " ".join(sorted({str(row["sha"]) for row in rows}))
            slowest = max(float(str(row["ms"])) for row in rows)
            how = "without lending" if alone else "with lending"
            print(f"{times:g} times slower, {how}: {slowest:.0f} ms a step, {shas}", flush=True)


if __name__ == "__main__":
    main()
