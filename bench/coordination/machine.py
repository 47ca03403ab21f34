"""What the figures depend on: the machine, its disk, the versions, and who else was busy."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import time
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from bench.coordination.report import percentile
from tests.servers.zookeeper import JARS

# More waiting processes than this before we start, and the figures are not to be quoted.
BUSY_LOAD: Final = 0.5
# A disk that is a disk takes longer than this for an fsync.
FSYNC_MS_MIN: Final = 0.02
FSYNC_SAMPLES: Final = 200


def load_average() -> float:
    return os.getloadavg()[0]


def stolen_s() -> float:
    """Seconds that the host gave to others while we wanted to run, of each core (mean), since the
    machine was started. Always 0 where the system does not tell."""
    try:
        words = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    except OSError:
        return 0.0
    return int(words[8]) / os.sysconf("SC_CLK_TCK") / (os.cpu_count() or 1)


def fsync_ms(folder: Path) -> tuple[float, float]:
    """p50 and p99 of writing 4 KB and waiting until it is on the disk."""
    took = []
    path = folder / "fsync"
    handle = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        os.write(handle, bytes(4096 * FSYNC_SAMPLES))
        os.fsync(handle)
        for number in range(FSYNC_SAMPLES):
            started = time.perf_counter()
            os.pwrite(handle, b"\x01" * 4096, number * 4096)
            os.fdatasync(handle)
            took.append((time.perf_counter() - started) * 1_000)
    finally:
        os.close(handle)
        path.unlink()
    took.sort()
    return percentile(took, 0.5), percentile(took, 0.99)


def facts(folder: Path) -> dict[str, Any]:
    p50, p99 = fsync_ms(folder)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(memory / 1e9, 1),
        "kernel": platform.release(),
        "fsync_p50_ms": round(p50, 3),
        "fsync_p99_ms": round(p99, 3),
        "python": platform.python_version(),
        "kazoo": _version("kazoo"),
        "uvloop": _version("uvloop"),
        "zookeeper": _zookeeper_version(),
        "java": _java_version(),
        "load_before": round(load_average(), 2),
    }


def warnings(machine: dict[str, Any]) -> list[str]:
    """Why these figures should not be quoted, if there is a reason."""
    found = []
    if machine["load_before"] > BUSY_LOAD:
        found.append(
            f"the machine was busy before the run (load {machine['load_before']}): ratios are"
            " rough, latencies worse"
        )
    if machine["fsync_p50_ms"] < FSYNC_MS_MIN:
        found.append(
            f"an fsync takes {machine['fsync_p50_ms']} ms: this is memory, not a disk;"
            " choose another --folder"
        )
    return found


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor()
    found = re.search(r"model name\s*:\s*(.+)", text)
    return found[1] if found else platform.machine()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def _zookeeper_version() -> str:
    found = sorted(JARS.glob("zookeeper-[0-9]*.jar"))
    return found[-1].stem.removeprefix("zookeeper-") if found else "none"


def _java_version() -> str:
    try:
        done = subprocess.run(["java", "-version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "none"
    return done.stderr.splitlines()[0]
