"""What must be true of the workers' own logs of what they computed. Pure.

A lane of a step may be computed more than once: by somebody whose sum died with it, or again after
everything went back to a checkpoint. But whoever computes it takes the same samples; and over all
steps of an epoch each sample is there once.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


class Violation(AssertionError):
    """A promise was broken."""


@dataclass(frozen=True, slots=True)
class Consumed:
    """A batch that a worker has computed."""

    worker: int
    step: int
    epoch: int
    lane: int
    part: int
    samples: tuple[int, ...]


def read(folder: Path) -> list[Consumed]:
    """All logs in this folder. The last line of a killed worker's may be cut off."""
    found = []
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_text().split("\n")[:-1]:
            row = json.loads(line)
            found.append(Consumed(**{**row, "samples": tuple(row["samples"])}))
    return found


def every_sample_counts_once(consumed: Iterable[Consumed], samples: int, epochs: int) -> int:
    """Raises `Violation` if not; how many batches were computed more than once."""
    batches: dict[tuple[int, int, int], Consumed] = {}
    again = 0
    for one in consumed:
        key = (one.step, one.lane, one.part)
        first = batches.setdefault(key, one)
        again += first is not one
        if (first.epoch, first.samples) != (one.epoch, one.samples):
            raise Violation(
                f"step {one.step}, lane {one.lane}: worker {first.worker} took {first.samples} of"
                f" epoch {first.epoch}, worker {one.worker} took {one.samples} of epoch {one.epoch}"
            )
    if {one.epoch for one in batches.values()} != set(range(epochs)):
        raise Violation(f"the epochs are {sorted({one.epoch for one in batches.values()})}")
    for epoch in range(epochs):
        of_epoch = [one for one in batches.values() if one.epoch == epoch]
        counts = Counter(sample for one in of_epoch for sample in one.samples)
        wrong = {sample: counts[sample] for sample in range(samples) if counts[sample] != 1}
        if wrong or len(counts) != samples:
            raise Violation(f"epoch {epoch}: not counted once: {wrong or sorted(counts)}")
    return again


def same_bits(found: str, right: str, what: str) -> None:
    if found != right:
        raise Violation(f"{what}: the bits are {found}, and not {right}")
