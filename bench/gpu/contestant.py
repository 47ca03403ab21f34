"""One contestant in a process of its own: trains, and says what its steps took and came to.

    python -m bench.gpu.contestant plain gpt --steps 20 --mode eager
    python -m bench.gpu.contestant ours gpt --steps 20 --mode eager
    python -m bench.gpu.contestant ours gpt --steps 20 --captured

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

import torch
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

    train.launch(main, lanes=LANES)
    return row


def _row(watch: Watch, model: torch.nn.Module) -> dict[str, object]:
    peak = torch.cuda.max_memory_allocated() / 2**20 if torch.cuda.is_available() else 0.0
    return {"ms": watch.median(), "peak_mb": peak, "sha": digest(model)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("who", choices=("plain", "ours"))
    parser.add_argument("work", choices=sorted(WORKS))
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--mode", default="eager", help="eager, or a mode of torch.compile")
    parser.add_argument("--captured", action="store_true", help="ours with run.lane")
    parser.add_argument("--deterministic", action="store_true", help="plain with our settings")
    parser.add_argument("--exchange", choices=("shared", "tcp"), default="shared")
    parser.add_argument("--profile", action="store_true", help="where the processor's time goes")
    given = parser.parse_args()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    work = WORKS[given.work]
    run = plain if given.who == "plain" else ours
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
