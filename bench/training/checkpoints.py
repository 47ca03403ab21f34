"""What a checkpoint costs, beside torch.save and DCP: `python -m bench.training.checkpoints`.

    python -m bench.training.checkpoints                          # 10 million parameters, 3 minutes
    python -m bench.training.checkpoints --parameters 50000000    # larger
    python -m bench.training.checkpoints --parameters 100000000 --device cuda --rounds 3

One process of one thread trains the whole time; model and AdamW's state are saved again and again,
in turns: ours (as a solo run does), `torch.save` with an fsync, and
`torch.distributed.checkpoint.async_save`. Between two saves it trains undisturbed.

- stall: how long the loop stands still, at the save and wherever it waits for the last one
- lost: how much slower steps are from the end of the stall until the checkpoint is durable
- bytes: written with half of the parameters frozen, from the second checkpoint on
- restore: from the files to a model and an optimizer that hold the state; checked bit for bit
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save
from torch.nn import functional

from bench.coordination.machine import load_average
from bench.training import work
from bench.training.recovery import RESULTS, write
from holdfast.train.members.solo import Solo
from holdfast.train.states.state import TrainingState
from holdfast.train.states.tracked import Tracked

LOST_MAX: Final = 0.05
CALM_STEPS: Final = 20


class Job:
    """A model under training."""

    def __init__(self, parameters: int, device: str, *, frozen: bool = False) -> None:
        torch.manual_seed(work.SEED)
        self.model = work.network(parameters).to(device)
        if frozen:
            # The first two of three large layers: half of the model, as nearly as it goes.
            for layer in list(self.model)[:3]:  # type: ignore[call-overload]
                layer.requires_grad_(False)
        learns = [each for each in self.model.parameters() if each.requires_grad]
        self.optimizer = torch.optim.AdamW(learns, lr=work.LEARNING_RATE)
        self._x, self._y = (each.to(device) for each in work.samples().tensors)

    def step(self) -> None:
        chosen = torch.randint(work.SAMPLES, (32,))
        self.optimizer.zero_grad()
        loss = functional.cross_entropy(self.model(self._x[chosen]), self._y[chosen])
        loss.backward()
        self.optimizer.step()
        if self._x.is_cuda:
            torch.cuda.synchronize()  # a step has ended when it is computed

    def state(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load(self, state: Mapping[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])

    def tensors(self) -> list[torch.Tensor]:
        weights = list(self.model.state_dict().values())
        return weights + [
            value
            for _number, state in sorted(self.optimizer.state_dict()["state"].items())
            for _name, value in sorted(state.items())
        ]

    def equals(self, other: Job) -> bool:
        return all(map(torch.equal, self.tensors(), other.tensors()))


class Ours:
    """A solo run's checkpoints: copied aside, then written by a thread, by their content."""

    name = "ours"

    def __init__(self, job: Job, folder: Path) -> None:
        self._tracked = Tracked()
        self._tracked.add("model", job.model)
        self._tracked.add("optimizer", job.optimizer)
        self._folder = folder
        self._solo = Solo(self, 1, folder=folder, every_steps=1)
        self._solo.join()

    def fresh(self) -> None:
        """It is made already."""

    def state(self) -> TrainingState:
        entries, skeletons = self._tracked.entries()
        return TrainingState.of(self._solo.step, entries, {"objects": skeletons})

    def adopt(self, state: TrainingState) -> None:
        self._tracked.adopt(state, state.notes["objects"])

    def save(self) -> None:
        self._solo.boundary()

    def busy(self) -> bool:
        return self._solo._saver is not None and self._solo._saver.busy

    def close(self) -> None:
        self._solo.close()

    @classmethod
    def restore(cls, folder: Path, job: Job) -> None:
        cls(job, folder).close()


class Plain:
    """`torch.save`, on the disk before the loop goes on."""

    name = "torch.save"

    def __init__(self, job: Job, folder: Path) -> None:
        self._job, self._folder = job, folder

    def save(self) -> None:
        unfinished = self._folder / "state.tmp"
        with unfinished.open("wb") as file:
            torch.save(self._job.state(), file)
            file.flush()
            os.fsync(file.fileno())
        unfinished.rename(self._folder / "state.pt")

    def busy(self) -> bool:
        return False

    def close(self) -> None:
        """Nothing is open."""

    @classmethod
    def restore(cls, folder: Path, job: Job) -> None:
        job.load(torch.load(folder / "state.pt", weights_only=True))


class Dcp:
    """`async_save` into a new folder each time; the one before is removed once it is durable."""

    name = "async_save"

    def __init__(self, job: Job, folder: Path) -> None:
        self._job, self._folder = job, folder
        self._number = 0
        self._writing: Any = None

    def save(self) -> None:
        self._number += 1
        place = self._folder / str(self._number)
        self._writing = async_save(self._job.state(), checkpoint_id=place)

    def busy(self) -> bool:
        if self._writing is None or not self._writing.done():
            return self._writing is not None
        self._writing.result()
        shutil.rmtree(self._folder / str(self._number - 1), ignore_errors=True)
        return False

    def close(self) -> None:
        """Nothing is open."""

    @classmethod
    def restore(cls, folder: Path, job: Job) -> None:
        # It loads into tensors that are there: the optimizer needs its state first.
        job.step()
        state = job.state()
        latest = max(folder.iterdir(), key=lambda each: int(each.name))
        load(state, checkpoint_id=latest)
        job.load(state)


Saves = Ours | Plain | Dcp
KINDS: Final[tuple[type[Saves], ...]] = (Ours, Plain, Dcp)


def timed(work_: Callable[[], object]) -> float:
    begun_s = time.perf_counter()
    work_()
    return time.perf_counter() - begun_s


def one_save(job: Job, saves: Saves) -> tuple[float, float | None, float]:
    """The stall in s, the share of throughput lost until durable (None: it stood still all the
    time), and how long that took."""
    calm_s = statistics.median(timed(job.step) for _ in range(CALM_STEPS))
    begun_s = time.perf_counter()
    stall_s = timed(saves.save)
    steps = []
    while saves.busy():
        steps.append(timed(job.step))
    durable_s = time.perf_counter() - begun_s
    lost = 1 - calm_s / statistics.mean(steps) if steps else None
    return stall_s, lost, durable_s


def bytes_in(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):
            total += path.stat().st_size if path.is_file() else 0
    return total


def frozen_bytes(kind: type[Saves], folder: Path, given: argparse.Namespace) -> int:
    """Written by the second checkpoint, with half of the model frozen."""
    job = Job(given.parameters, given.device, frozen=True)
    place = folder / f"{kind.name}-frozen"
    place.mkdir()
    saves = kind(job, place)
    before = 0
    for _ in range(2):
        job.step()
        before = bytes_in(place) if isinstance(saves, Ours) else 0
        saves.save()
        while saves.busy():
            time.sleep(0.01)
    saves.close()
    return bytes_in(place) - before


def restored(kind: type[Saves], folder: Path, given: argparse.Namespace, job: Job) -> float:
    """Seconds to restore; the state is checked."""
    torch.manual_seed(99)
    other = Job(given.parameters, given.device)
    with torch.no_grad():
        for each in other.model.parameters():
            each.add_(1)
    took_s = timed(lambda: kind.restore(folder, other))
    if not job.equals(other):
        raise SystemExit(f"{kind.name} restored another state")
    return took_s


def measure(folder: Path, given: argparse.Namespace) -> list[dict[str, Any]]:
    job = Job(given.parameters, given.device)
    everyone = []
    for kind in KINDS:
        (folder / kind.name).mkdir()
        everyone.append(kind(job, folder / kind.name))
    found: dict[str, list[tuple[float, float | None, float]]] = {one.name: [] for one in everyone}
    for number in range(given.rounds + 1):
        for saves in everyone:
            seen = one_save(job, saves)
            if number:  # the first ones make their room
                found[saves.name].append(seen)
    rows = []
    for kind, saves in zip(KINDS, everyone, strict=True):
        saves.save()
        while saves.busy():
            time.sleep(0.01)
        saves.close()
        took_s = [restored(kind, folder / kind.name, given, job) for _ in range(given.restores)]
        lost = [each[1] for each in found[kind.name] if each[1] is not None]
        rows.append(
            {
                "name": kind.name,
                "stall_ms": statistics.median(each[0] for each in found[kind.name]) * 1000,
                "stall_worst_ms": max(each[0] for each in found[kind.name]) * 1000,
                "lost": statistics.median(lost) if lost else None,
                "durable_s": statistics.median(each[2] for each in found[kind.name]),
                "frozen_bytes": frozen_bytes(kind, folder, given),
                "restore_s": statistics.median(took_s),
            }
        )
    return rows


def show(rows: list[dict[str, Any]]) -> None:
    print("who          stall ms   worst    lost  durable s  frozen MB  restore s")
    for row in rows:
        lost = "-" if row["lost"] is None else f"{row['lost']:.1%}"
        written_mb = row["frozen_bytes"] / 1e6
        print(
            f"{row['name']:<12} {row['stall_ms']:>8.1f} {row['stall_worst_ms']:>7.1f} {lost:>7} "
            f"{row['durable_s']:>10.2f} {written_mb:>10.1f} {row['restore_s']:>10.2f}"
        )
    ours, *others = rows
    least = min(row["stall_ms"] for row in others)
    print(
        f"stall / the best other's {ours['stall_ms'] / least:.2f} (goal below 1): "
        f"{_word(ours['stall_ms'] < least)}"
    )
    share = ours["lost"] or 0.0
    print(f"lost {share:.1%} (goal at most {LOST_MAX:.0%}): {_word(share <= LOST_MAX)}")


def _word(reached: bool) -> str:
    return "reached" if reached else "MISSED"


def main(argv: Sequence[str] | None = None) -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--parameters", type=int, default=10**7)
    options.add_argument("--rounds", type=int, default=7)
    options.add_argument("--restores", type=int, default=3)
    options.add_argument("--device", default="cpu", help="cuda: the model lives on a GPU")
    options.add_argument("--json", type=Path)
    given = options.parse_args(argv)
    torch.set_num_threads(1)
    RESULTS.mkdir(exist_ok=True)
    print(f"load {load_average():.1f}, {given.parameters:,} parameters with AdamW, one thread")
    with tempfile.TemporaryDirectory(prefix="checkpoints-", dir=RESULTS) as folder:
        place = f"file://{folder}/store"
        dist.init_process_group("gloo", init_method=place, rank=0, world_size=1)
        rows = measure(Path(folder), given)
        dist.destroy_process_group()
    show(rows)
    if given.json:
        write(given.json, rows)


if __name__ == "__main__":
    main()
