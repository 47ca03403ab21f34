"""One contestant in a process of its own: trains, and says what its steps took and came to.

    python -m bench.gpu.contestant plain gpt --steps 20 --mode eager
    python -m bench.gpu.contestant ours gpt --steps 20 --mode eager
    python -m bench.gpu.contestant ours gpt --steps 20 --captured
    RANK=0 WORLD_SIZE=1 ... python -m bench.gpu.contestant ddp gpt    # see bench.gpu.ddp

It prints one line of JSON: the step's time in ms (the median of windows of five steps, each ended
by a wait for the GPU), the peak of memory, the SHA-256 of the weights, and what gradients travelled
over, if there were several workers.
"""

from __future__ import annotations

import argparse
import cProfile
import hashlib
import json
import logging
import os
import pstats
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

from bench.gpu.models import LANES, WORKS, Work, compiled, optimizer_of
from holdfast import train

WINDOW = 5  # steps
WARM_WINDOWS = 2


class Watch:
    """Times windows of steps."""

    def __init__(self) -> None:
        self.found: list[float] = []
        self._steps, self._begun = 0, time.perf_counter()

    def step(self) -> None:
        self._steps += 1
        if self._steps % WINDOW == 0:
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            now = time.perf_counter()
            self.found.append((now - self._begun) / WINDOW * 1e3)
            self._begun = now

    def median(self) -> float:
        return statistics.median(self.found[WARM_WINDOWS:])


class Ways(logging.Handler):
    """What the exchanges of this process say of the way that they have taken."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(str(record.msg))


def digest(model: torch.nn.Module) -> str:
    parts = (each.detach().cpu().contiguous().numpy().tobytes() for each in model.parameters())
    return hashlib.sha256(b"".join(parts)).hexdigest()[:12]


def plain(work: Work, given: argparse.Namespace) -> dict[str, object]:
    """What people write: micro-batches, gradients that pile up, one step of the optimizer."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if given.deterministic:
        torch.use_deterministic_algorithms(True)
    torch.manual_seed(0)
    model = work.make().to(device)
    optimizer = optimizer_of(model)
    called = compiled(model, given.mode)
    watch = Watch()
    for batches in _steps(work, given.steps, device):
        for x, y in batches:
            (called(x, y) / LANES).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        watch.step()
    return _row(watch, model)


def _steps(
    work: Work, steps: int, device: torch.device
) -> Iterator[list[tuple[torch.Tensor, torch.Tensor]]]:
    x, y = (each.pin_memory() if device.type == "cuda" else each for each in work.data(steps))
    size = work.lane_batch
    for step in range(steps):
        begin = step * LANES * size
        places = [slice(begin + lane * size, begin + (lane + 1) * size) for lane in range(LANES)]
        yield [
            (x[place].to(device, non_blocking=True), y[place].to(device, non_blocking=True))
            for place in places
        ]


def ours(work: Work, given: argparse.Namespace) -> dict[str, object]:
    row: dict[str, object] = {}
    ways = Ways()
    logger = logging.getLogger("holdfast.train.sums.exchange")
    logger.setLevel(logging.INFO)
    logger.addHandler(ways)
    if given.exchange == "tcp":
        os.environ["HOLDFAST_EXCHANGE"] = "tcp"
    if given.exchange == "nccl":
        os.environ["HOLDFAST_NETWORK"] = "trusted"
        live_apart(os.environ.get("HOLDFAST_WORKER", "0"))

    def main(run: train.Run) -> None:
        model = work.make().to(run.device)
        optimizer = optimizer_of(model)
        called = compiled(model, given.mode)
        run.track(model=model, optimizer=optimizer)
        data, watch = TensorDataset(*work.data(given.steps)), Watch()
        run.every(1, lambda _: watch.step())
        lane = run.lane(capture=given.captured)(lambda batch: called(batch.x, batch.y))
        for batch in run.batches(data, lane_batch=work.lane_batch, shuffle=False):
            run.step(lane(batch) if given.captured else called(batch.x, batch.y))
        row.update({**_row(watch, model), "exchange": ways.found[-1:]})

    if given.gather is not None:
        gathered(given.gather, given.workers)
    train.launch(main, lanes=LANES)
    return row


def gathered(folder: Path, count: int) -> None:
    """Wait until so many workers have come this far: whoever is there would begin without them."""
    (folder / str(os.getpid())).touch()
    while len(list(folder.iterdir())) < count:
        time.sleep(0.01)


def ddp(work: Work, given: argparse.Namespace) -> dict[str, object]:
    """What people write: DistributedDataParallel over NCCL, each rank with its share of the
    micro-batches."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    live_apart(str(rank))
    device = torch.device("cuda", 0)
    torch.cuda.set_device(device)
    if given.deterministic:
        torch.use_deterministic_algorithms(True)
    dist.init_process_group("nccl", device_id=device)
    torch.manual_seed(0)
    model = work.make().to(device)
    wrapped = DistributedDataParallel(model, device_ids=[0])
    optimizer = optimizer_of(model)
    watch, share = Watch(), LANES // world
    for batches in _steps(work, given.steps, device):
        mine = batches[rank * share : (rank + 1) * share]
        for number, (x, y) in enumerate(mine, 1):
            with nullcontext() if number == share else wrapped.no_sync():
                (wrapped(x, y) / share).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        watch.step()
    row = _row(watch, model)
    dist.destroy_process_group()
    return row


def live_apart(host: str) -> None:
    """NCCL takes several ranks on one GPU only if it believes them to be on different machines."""
    os.environ["NCCL_HOSTID"] = f"machine-{host}"
    os.environ.update(NCCL_SOCKET_IFNAME="lo", NCCL_P2P_DISABLE="1", NCCL_SHM_DISABLE="1")


def _row(watch: Watch, model: torch.nn.Module) -> dict[str, object]:
    peak = torch.cuda.max_memory_allocated() / 2**20 if torch.cuda.is_available() else 0.0
    return {"ms": watch.median(), "peak_mb": peak, "sha": digest(model)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("who", choices=("plain", "ours", "ddp"))
    parser.add_argument("work", choices=sorted(WORKS))
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--mode", default="eager", help="eager, or a mode of torch.compile")
    parser.add_argument("--captured", action="store_true", help="ours with run.lane")
    parser.add_argument("--deterministic", action="store_true", help="plain with our settings")
    parser.add_argument("--exchange", choices=("shared", "tcp", "nccl"), default="shared")
    parser.add_argument("--gather", type=Path, help="a folder in which workers wait for all others")
    parser.add_argument("--workers", type=int, default=1, help="so many")
    parser.add_argument("--profile", action="store_true", help="where the processor's time goes")
    given = parser.parse_args()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    work = WORKS[given.work]
    run = {"plain": plain, "ours": ours, "ddp": ddp}[given.who]
    if given.profile:
        profile = cProfile.Profile()
        row = profile.runcall(run, work, given)
        pstats.Stats(profile, stream=sys.stderr).sort_stats("tottime").print_stats(45)
    else:
        row = run(work, given)
    print("ROW " + json.dumps(row), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
