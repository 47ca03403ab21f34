"""Steps beside DistributedDataParallel over NCCL, all ranks on one GPU.

    python -m bench.gpu.ddp gpt --worlds 1 2 4 --steps 20

NCCL takes several ranks on a GPU only if they seem to be on different machines (`NCCL_HOSTID`), and
then speaks over sockets. So do ours here (`network: trusted`), with the same settings. In turns,
each run by itself; ours is always deterministic, DDP as torch is by default, and deterministic.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
from pathlib import Path

from bench.gpu import sharing

ROOT = Path(__file__).resolve().parents[2]


def ddp(world: int, given: argparse.Namespace, *, deterministic: bool) -> float:
    """The slowest rank's step, in ms."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "bench.gpu.contestant", "ddp", given.work]
    command += ["--steps", str(given.steps), *(["--deterministic"] if deterministic else [])]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(world)}
    running = [
        subprocess.Popen(
            command,
            env={**os.environ, **shared, "PYTHONPATH": str(ROOT), "RANK": str(rank)},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        for rank in range(world)
    ]
    rows = []
    for one in running:
        said, _ = one.communicate(timeout=given.patience)
        found = [line for line in said.splitlines() if line.startswith("ROW ")]
        if not found:
            raise SystemExit(f"DDP has failed:\n{said[-2000:]}")
        rows.append(json.loads(found[-1].removeprefix("ROW ")))
    return max(float(row["ms"]) for row in rows)


def ours(world: int, given: argparse.Namespace) -> tuple[float, str]:
    way = "nccl" if world > 1 else "shared"
    rows = sharing.run(world, way, given)
    shas = " ".join(sorted({str(row["sha"]) for row in rows}))
    return max(float(str(row["ms"])) for row in rows), f"{shas} {rows[0]['exchange']}"


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("work", choices=("gpt", "resnet", "mlp"))
    options.add_argument("--worlds", type=int, nargs="+", default=[1, 2, 4])
    options.add_argument("--steps", type=int, default=20)
    options.add_argument("--rounds", type=int, default=1)
    options.add_argument("--deterministic", action="store_true", help="DDP also with our settings")
    options.add_argument("--captured", action="store_true", help="ours with run.lane")
    options.add_argument("--patience", type=float, default=200.0, help="seconds for one run")
    options.set_defaults(gpu=1, mode="eager")
    given = options.parse_args()
    for world in given.worlds:
        times: dict[str, list[float]] = {"ddp": [], "deterministic ddp": [], "ours": []}
        for _ in range(given.rounds):
            times["ddp"].append(ddp(world, given, deterministic=False))
            if given.deterministic:
                times["deterministic ddp"].append(ddp(world, given, deterministic=True))
            took, sha = ours(world, given)
            times["ours"].append(took)
        one = {name: statistics.median(found) for name, found in times.items() if found}
        ratio = one["ours"] / one["ddp"]
        print(
            f"{given.work}, world size {world}: {one}, ours {ratio:.2f} of DDP; {sha}", flush=True
        )


if __name__ == "__main__":
    main()
