"""What this machine has to give: cores, memory, GPUs, disk. Limits of a container count.

GPUs are found without torch: it takes seconds to import, and would hold a context on each device.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from holdfast.agent import disk_use

# Of an agent's file system so much is given to no worker: logs, journal, bundles, checkpoints.
DISK_RESERVE_PART: Final = 0.05
DISK_RESERVE_BYTES_MAX: Final = 10 * 1024**3
# What `nvidia-smi` may take to list the devices: a sleeping driver wakes up first.
NVIDIA_SMI_S: Final = 20.0

_GROUPS: Final = Path("/sys/fs/cgroup")
_OWN: Final = Path("/proc/self/cgroup")
_MEMORY: Final = Path("/proc/meminfo")
_DRIVER: Final = Path("/proc/driver/nvidia/gpus")
_SMI: Final = re.compile(r"GPU \d+(?:: ([^(]*[^( ]))?")  # GPU 0: NVIDIA H200 (UUID: ...)
_UNNAMED: Final = "a GPU"
VISIBLE_VARIABLE: Final = "CUDA_VISIBLE_DEVICES"


def cores() -> tuple[int, ...]:
    """The system's numbers of the cores that this process may run on."""
    return tuple(sorted(os.sched_getaffinity(0)))


def cpu(groups: Path = _GROUPS, own: Path = _OWN) -> float:
    """How many cores this process may use: those it may run on, or less by a container's share."""
    found = [float(len(cores()))]
    for folder in _folders("cpu", groups, own):
        quota, period = _text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us")
        for words in (_text(folder / "cpu.max").split(), [*quota.split(), *period.split()]):
            if len(words) == 2 and words[0].isdigit() and int(words[1]) > 0:
                found.append(int(words[0]) / int(words[1]))
    return min(found)


def memory_bytes(groups: Path = _GROUPS, own: Path = _OWN, whole: Path = _MEMORY) -> int:
    """The machine's memory, or less by a container's limit."""
    found = []
    for line in _text(whole).splitlines():
        name, _, rest = line.partition(":")
        if name == "MemTotal":
            found.append(int(rest.split()[0]) * 1024)
    for folder in _folders("memory", groups, own):
        for name in ("memory.max", "memory.limit_in_bytes"):
            limit = _text(folder / name).strip()
            if limit.isdigit():
                found.append(int(limit))
    return min(found, default=0)


def _folders(controller: str, groups: Path, own: Path) -> Iterator[Path]:
    """The folders of our own control group and of all above it, in either version of the system.

    Within a container the path may be that of the host, which is not shown: then only the root is.
    """
    for line in _text(own).splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            bases = [groups, groups / "unified"]
        elif controller in controllers.split(","):
            bases = [groups / controllers, groups / controller]
        else:
            continue
        for base in bases:
            folder = base / path.lstrip("/")
            yield from (up for up in (folder, *folder.parents) if up.is_relative_to(base))


def disk_bytes(home: Path) -> int:
    """What workers may write below an agent's folder: what is free on its file system and what
    workers hold there already, less a reserve for logs, journals, bundles and checkpoints."""
    there = next(path for path in (home, *home.parents) if path.is_dir())
    found = os.statvfs(there)
    free, whole = found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize
    reserve = min(int(whole * DISK_RESERVE_PART), DISK_RESERVE_BYTES_MAX)
    return max(0, free + disk_use.held_bytes(home / "workers") - reserve)


def gpus(driver: Path = _DRIVER) -> tuple[int, ...]:
    """The numbers of this machine's GPUs that we may see, as CUDA counts them by the bus."""
    return tuple(number for number, _ in _found(driver))


def gpu_names(driver: Path = _DRIVER) -> tuple[str, ...]:
    """What those GPUs are called, such as `NVIDIA H200`."""
    return tuple(name for _, name in _found(driver))


def _found(driver: Path) -> list[tuple[int, str]]:
    names = _listed_by_driver(driver) if driver.is_dir() else _listed()
    visible = os.environ.get(VISIBLE_VARIABLE)
    if visible is None:
        return list(enumerate(names))
    words = [word.strip() for word in visible.split(",") if word.strip()]
    numbers = [int(word) for word in words if word.isdigit()]
    return [(number, names[number]) for number in numbers if number < len(names)]


def _listed_by_driver(driver: Path) -> list[str]:
    """A folder for each, named by its place on the bus."""
    names = []
    for folder in sorted(driver.iterdir()):
        known = dict(
            line.split(":", 1) for line in _text(folder / "information").splitlines() if ":" in line
        )
        names.append(known.get("Model", "").strip() or _UNNAMED)
    return names


def _listed() -> list[str]:
    """By `nvidia-smi`, where the driver's own list is not shown (some containers)."""
    try:
        listed = subprocess.run(
            ["nvidia-smi", "--list-gpus"],
            capture_output=True,
            text=True,
            timeout=NVIDIA_SMI_S,
            check=False,
        )
    except (FileNotFoundError, PermissionError, subprocess.TimeoutExpired):
        return []
    if listed.returncode != 0:
        return []
    found = [_SMI.match(line) for line in listed.stdout.splitlines()]
    return [match[1] or _UNNAMED for match in found if match]


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
