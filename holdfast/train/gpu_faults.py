"""What a GPU's error is, from what torch says of it. Pure, but for a look at the kernel's log.

Each is the death of its worker: a CUDA context that has failed once fails for ever. The worker ends
with one of these errors, so that `holdfast why` has the cause. A `GpuFault` is the device's own:
its agent counts them, and after repeats does not give that GPU out any more (`agent.slots`). What a
program brings upon itself (`GpuMemoryFull`, `GpuMisused`) says nothing about the device.

A kernel that never ends raises nothing: its worker makes no progress, and its agent ends it after
the job's `silence`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from holdfast.wire.errors import GpuFault, HoldfastError, TerminalError

# What the kernel's driver writes: NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python, GPU has …
_XID: Final = re.compile(r"NVRM: Xid \(PCI:[^)]*\): (\d+), pid='?(\d+)'?[^,]*,?\s*(.*)")
_KERNEL_LOG: Final = "/dev/kmsg"
_KERNEL_LOG_LINES_MAX: Final = 20_000

# What CUDA says, as torch passes it on, and what it means. The device's own:
_FAULTS: Final = (
    ("uncorrectable ECC error", "its memory has an uncorrectable error (ECC)"),
    ("uncorrectable NVLink error", "a connection to another GPU has an uncorrectable error"),
    ("contained", "a part of its memory has failed"),
    ("hardware stack error", "it has met an error in its own stack"),
    ("busy or unavailable", "it does not answer"),
    ("no CUDA-capable device", "it is not there any more"),
    ("unknown error", "it has failed, and does not say of what"),
    ("GPU is lost", "it has fallen off the bus"),
)
# The program's, mostly:
_MISUSES: Final = (
    ("illegal memory access", "a kernel has read or written where it has no memory"),
    ("misaligned address", "a kernel has used an address that is not aligned"),
    ("illegal instruction", "a kernel has an instruction that the GPU does not know"),
    ("device-side assert", "a check inside of a kernel has failed; often an index out of range"),
    ("launch failure", "a kernel has failed"),
    ("launch timed out", "a kernel took longer than the system allows"),
)
_CUDA: Final = re.compile(r"CUDA (?:driver )?error:|CUDNN_STATUS|cuBLAS error|CUBLAS_STATUS|NVML")


class GpuMemoryFull(TerminalError):
    """The GPU's memory is too small for what was asked of it."""


class GpuMisused(TerminalError):
    """A kernel did what it must not."""


def explained(error: BaseException, device: str, xids: Iterable[str] = ()) -> HoldfastError | None:
    """The same in plain words; None: it is none of a GPU's. `xids`: what the driver has written of
    this process."""
    said = " ".join(str(error).split())
    kind = type(error).__name__
    if kind == "OutOfMemoryError" or "CUDA out of memory" in said:
        return GpuMemoryFull(
            f"{device} is out of memory: {said[:300]}",
            why="the model, its optimizer and a lane's activations do not fit beside what others "
            "have there",
            fix="use a smaller lane_batch, with run.accumulate for the same step; or share the GPU "
            "with fewer workers (--gpu-share)",
        )
    if not (kind == "AcceleratorError" or _CUDA.search(said)):
        return None
    written = "; ".join(xids)
    for text, meaning in _FAULTS:
        if text in said:
            return GpuFault(
                f"{device} has failed: {meaning}",
                why=f"{text}{'; ' + written if written else ''}",
                fix="nothing: others go on with its lanes; if it repeats, the GPU is not given out "
                "any more, and wants to be looked at: nvidia-smi -q",
            )
    for text, meaning in _MISUSES:
        if text in said:
            return GpuMisused(
                f"{device}: {meaning} ({text})",
                why=written or "it is shown where the GPU was waited for, not where it was",
                fix="run it alone with CUDA_LAUNCH_BLOCKING=1: that shows where it was",
            )
    return GpuMisused(f"{device}: {said[:300]}", why=written or "CUDA says so")


def explained_here(error: BaseException, device: str) -> HoldfastError | None:
    """The same, with what the driver has written of this process."""
    found = explained(error, device)
    if isinstance(found, GpuFault | GpuMisused):
        found = explained(error, device, xids_of(os.getpid(), kernel_lines()))
    return found


def xids_of(pid: int, lines: Iterable[str]) -> list[str]:
    """What the driver has written of this process."""
    found = (_XID.search(line) for line in lines)
    return [f"Xid {it[1]}: {it[3].strip()}"[:200] for it in found if it and int(it[2]) == pid]


def kernel_lines(path: str = _KERNEL_LOG) -> list[str]:
    """The kernel's log, as far as this user may read it."""
    found: list[str] = []
    with suppress(OSError):
        log = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            while len(found) < _KERNEL_LOG_LINES_MAX:
                line = os.read(log, 8192)
                if not line:
                    break
                found.append(line.decode(errors="replace"))
        finally:
            os.close(log)
    return found
