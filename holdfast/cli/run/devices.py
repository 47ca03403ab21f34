"""Which devices a run's workers use, and what is said of it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.client.texts import many


@dataclass(frozen=True, slots=True)
class Devices:
    """`workers`: how many there are to be. `gpu`: GPUs for each. `share`: workers on each GPU;
    None: one. `said`: what is used, in a sentence."""

    workers: int
    gpu: int
    share: int | None
    said: str


def choose(
    names: Sequence[str],
    *,
    workers: int | None,
    lanes: int | None,
    gpu: int | None,
    share: int | None,
) -> Devices:
    """What a run uses of the GPUs of these names. None: its user has not said it.

    What there is is used: a worker for each GPU, or as many as were asked for, each with one of
    its own; more workers than GPUs share them. `--gpu 0` is the CPU.
    """
    if gpu == 0 or not names:
        count = workers or 1
        why = "as --gpu 0 says" if gpu == 0 else "no GPU is visible"
        if gpu:
            return Devices(count, gpu, share, f"no GPU is visible, and each worker needs {gpu}")
        return Devices(count, 0, share, f"on the CPU: {why}")
    each = gpu or 1
    room = max(1, len(names) * (share or 1) // each)
    count = workers or (room if lanes is None else min(room, lanes))
    if gpu is None and share is None and count > room:
        share = -(-count // len(names))
    used = min(len(names), -(-count * each // (share or 1)))
    what = f"{many(used, 'GPU')}: {_named(names[:used])}"
    if (share or 1) > 1 and count > used:
        return Devices(count, each, share, f"{many(count, 'worker')} share {what}")
    return Devices(count, each, share, f"on {what}")


def _named(names: Sequence[str]) -> str:
    """`NVIDIA H200`, or `2 NVIDIA H200 and 1 NVIDIA L4`."""
    counts = Counter(names)
    if len(counts) == 1:
        return names[0]
    return " and ".join(f"{count} {name}" for name, count in counts.items())
