"""Steps of `holdfast run` with 1, 2 and 4 workers that share one GPU: their time and their bits.

    python -m bench.gpu.sharing gpt --workers 1 2 4 --steps 30
    python -m bench.gpu.sharing mlp --workers 1 2 --gpu 0 --exchange shared tcp    # without a GPU

Each run is a cluster of its own, one after the other. A line for each: a step in ms (the
slowest worker's), the SHA-256 of the weights of all workers, and what gradients travelled over.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.gpu.models import LANES

ROOT = Path(__file__).resolve().parents[2]
WAYS = ("shared", "tcp", "nccl")  # the last: as if each worker were on a machine of its own


def run(workers: int, exchange: str, given: argparse.Namespace) -> list[dict[str, object]]:
    """The row of each worker."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "holdfast", "run", "--workers", str(workers)]
        command += ["--lanes", str(LANES)]
        command += ["--gpu", str(given.gpu), "--checkpoint-every", "never", "--dir", folder]
        if given.gpu and workers > 1:
            command += ["--gpu-share", str(workers)]
        command += [str(ROOT / "bench/gpu/contestant.py"), "--", "ours", given.work]
        command += ["--steps", str(given.steps), "--mode", given.mode, "--exchange", exchange]
        command += ["--captured"] if given.captured else []
        gathering = Path(folder, "gathering")
        gathering.mkdir()
        command += ["--gather", str(gathering), "--workers", str(workers)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            command,
            env=environment,
            cwd=ROOT,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=given.patience,
            check=False,
        )
    rows = [json.loads(found) for found in re.findall(r"ROW (\{.*\})", done.stdout)]
    if len(rows) != workers:
        print(done.stdout[-3000:])
        raise SystemExit(f"{len(rows)} of {workers} workers have come to an end")
    return rows


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("work", choices=("gpt", "resnet", "mlp"))
    options.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    options.add_argument("--steps", type=int, default=30)
    options.add_argument("--mode", default="eager", help="eager, or a mode of torch.compile")
    options.add_argument("--captured", action="store_true", help="with run.lane")
    options.add_argument("--gpu", type=int, default=1, help="GPUs of a worker; 0: the CPU")
    options.add_argument("--exchange", nargs="+", choices=WAYS, default=["shared"])
    options.add_argument("--patience", type=float, default=300.0, help="seconds for one run")
    given = options.parse_args()
    for workers in given.workers:
        for exchange in given.exchange:
            rows = run(workers, exchange, given)
            slowest = max(float(str(row["ms"])) for row in rows)
            peak = max(float(str(row["peak_mb"])) for row in rows)
            shas = " ".join(sorted({str(row["sha"]) for row in rows}))
            ways = " ".join(map(str, rows[0]["exchange"] or ["alone"]))  # type: ignore[call-overload]
            how = "captured" if given.captured else given.mode
            print(
                f"{given.work} {how}, {workers} workers: {slowest:.1f} ms, {peak:.0f} MB each, "
                f"SHA-256 {shas}; {ways}",
                flush=True,
            )


if __name__ == "__main__":
    main()
