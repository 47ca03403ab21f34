"""`holdfast doctor`: is this machine ready? Each check says what it saw and how to mend it.

It changes nothing: what it writes is in a temporary folder, or a file that it removes at once. It
prints no secret: addresses are shown without their user and password.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import queue
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, TypeVar

from holdfast.agent import privacy
from holdfast.cli import machine, output
from holdfast.cli.throwaway import RoundTrip, round_trip_here, round_trip_to
from holdfast.cli.words import ask
from holdfast.wire.errors import HoldfastError, Unavailable
from holdfast.wire.tasks import start_thread

# All checks together, so that the command ends within three seconds: longer, and nobody runs it
# before asking for help.
DOCTOR_S: Final = 2.4
# Of `holdfast doctor`: a small process that tries out namespaces, after all other checks.
DOCTOR_TMP_S: Final = 0.5
# Measuring fsync: enough for a median on a slow disk, a fraction of the whole.
DOCTOR_FSYNC_S: Final = 0.4
DOCTOR_FSYNC_SAMPLES_MAX: Final = 25
# A write waits for one fsync. Above this a disk is spinning, remote, or throttled.
FSYNC_MS_WARN: Final = 10.0
# Room for the log and two snapshots of a full tree; below the minimum writes soon stop.
DISK_FREE_BYTES_WARN: Final = 5 * 1024**3
DISK_FREE_BYTES_MIN: Final = 256 * 1024**2
# A connection takes one file; fewer than this, and a small cluster meets the limit.
OPEN_FILES_WARN: Final = 4_096
# Wall clock against monotonic clock over a short sleep: more is a clock being moved.
CLOCK_SKEW_MS_WARN: Final = 20.0

PASS, WARN, FAIL = "PASS", "WARN", "FAIL"
COLOURS = {PASS: "green", WARN: "yellow", FAIL: "red"}
DEFAULT_PORT = 2181
PYTHON_MIN = (3, 11)
GIB = 1024**3

Result = TypeVar("Result")


@dataclass(frozen=True)
class Check:
    """One finding. `fix` is a command or a sentence, empty when there is nothing to mend."""

    name: str
    state: str
    seen: str
    fix: str = ""


@dataclass(frozen=True)
class Report:
    checks: tuple[Check, ...]
    took_ms: int

    @property
    def ok(self) -> bool:
        return all(check.state != FAIL for check in self.checks)


def examine(data: Path, address: str | None = None) -> Report:
    """Every check, in a bounded time altogether."""
    started = time.monotonic()
    folder = _nearest_existing(data)
    checks = [python(), torch(), fsync(folder), disk(folder), port(), clock(), open_files()]
    left_s = DOCTOR_S - (time.monotonic() - started)
    checks.insert(2, coordination(address, left_s))
    checks.append(tmp())
    return Report(tuple(checks), round((time.monotonic() - started) * 1_000))


def show(report: Report, *, as_json: bool) -> None:
    """The report, for a person or for a program."""
    if as_json:
        found = [asdict(check) for check in report.checks]
        output.show_json({"ok": report.ok, "took_ms": report.took_ms, "checks": found})
        return
    console = output.out()
    width = max(len(check.name) for check in report.checks)
    for check in report.checks:
        colour = COLOURS[check.state]
        console.print(f"[bold {colour}]{check.state}[/]  {check.name:<{width}}  ", end="")
        console.print(check.seen, markup=False)
        if check.fix:
            console.print(f"{'':<{width + 8}}", end="")
            console.print("[bold]fix[/] ", end="")
            console.print(check.fix, markup=False)
    verdict = "ready" if report.ok else "not ready: mend what says FAIL"
    console.print(f"[dim]{verdict} · {report.took_ms / 1_000:.1f} s[/]")


def python() -> Check:
    found = f"{platform.python_version()} at {sys.executable}"
    if sys.version_info[:2] < PYTHON_MIN:
        return Check("python", FAIL, found, "install Python 3.11 or newer")
    return Check("python", PASS, found)


def torch() -> Check:
    """Only whether it is there: importing it would take longer than all other checks together."""
    if importlib.util.find_spec("torch") is None:
        seen = "not installed; training and serving need it, coordination does not"
        return Check("torch", WARN, seen, "pip install 'holdfast[train]'")
    return Check("torch", PASS, importlib.metadata.version("torch"))


def tmp() -> Check:
    """Whether a worker can have a /tmp of its own."""
    found = privacy.found(DOCTOR_TMP_S)
    if found.kind:
        return Check("tmp", PASS, "each worker has a /tmp of its own")
    seen = f"workers share /tmp with all that runs here: {found.reason}"
    return Check("tmp", WARN, seen, privacy.FIX)


def coordination(address: str | None, limit_s: float) -> Check:
    """A real client against a real server: the given one, or one of ours made for the purpose."""
    # The work bounds itself, and tidies up; the limit around it is for what cannot be bounded.
    work_s = 0.8 * limit_s

    def trip() -> RoundTrip:
        return round_trip_to(address, work_s) if address else round_trip_here(work_s)

    try:
        found = _within(limit_s, trip)
    except HoldfastError as error:
        reason = f"{error.what} ({error.why})" if error.why else error.what
        return Check("coordination", FAIL, reason, error.fix)
    where = found.address if address else "a throwaway server"
    seen = f"{found.median_ms:.1f} ms round trip to {where}, version {found.version}"
    return Check("coordination", PASS, seen)


def fsync(folder: Path) -> Check:
    """The median time until a small write is on the disk; every acknowledged write waits for it."""
    block = b"holdfast" * 64
    samples: list[float] = []
    deadline = time.monotonic() + DOCTOR_FSYNC_S
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            while len(samples) < DOCTOR_FSYNC_SAMPLES_MAX and time.monotonic() < deadline:
                file.write(block)
                before = time.perf_counter()
                machine.sync(file.fileno())
                samples.append((time.perf_counter() - before) * 1_000)
    except OSError as error:
        fix = f"make it writable: chmod u+rwx {folder}, or choose another with --data"
        return Check("fsync", FAIL, f"cannot write in {folder}: {error.strerror}", fix)
    median_ms = statistics.median(samples)
    seen = f"{median_ms:.2f} ms median of {len(samples)} in {folder}"
    if median_ms > FSYNC_MS_WARN:
        return Check("fsync", WARN, seen, "put the data folder on a local SSD: --data DIR")
    return Check("fsync", PASS, seen)


def disk(folder: Path) -> Check:
    usage = shutil.disk_usage(folder)
    seen = f"{usage.free / GIB:.1f} GiB free of {usage.total / GIB:.1f} at {folder}"
    fix = "free some room, or choose another folder with --data"
    if usage.free < DISK_FREE_BYTES_MIN:
        return Check("disk", FAIL, seen, fix)
    if usage.free < DISK_FREE_BYTES_WARN:
        return Check("disk", WARN, seen, fix)
    return Check("disk", PASS, seen)


def port(number: int = DEFAULT_PORT) -> Check:
    """Whether the default port is free, or held by a server of the right kind."""
    where = f"127.0.0.1:{number}"
    if not machine.listening(number):
        return Check("port", PASS, f"{where} is free")
    answer = ask("127.0.0.1", number, "srvr", timeout_s=0.3)
    if answer.startswith("Zookeeper version"):
        return Check("port", PASS, f"a coordination server listens on {where}")
    fix = "choose another: holdfast coord serve --listen 127.0.0.1:2182"
    return Check("port", WARN, f"another program listens on {where}", fix)


def clock() -> Check:
    """Leases are measured on the monotonic clock; the wall clock only dates records."""
    skew_ms = machine.skew_ms()
    year = time.gmtime().tm_year
    if year < 2024:
        fix = "set the date: timedatectl set-ntp true"
        return Check("clock", FAIL, f"the wall clock says {year}", fix)
    if abs(skew_ms) > CLOCK_SKEW_MS_WARN:
        seen = f"the wall clock moved {skew_ms:+.0f} ms against the monotonic one"
        return Check(
            "clock", WARN, seen, "something is setting the clock: look at the time service"
        )
    synchronised = machine.synchronised()
    if synchronised is False:
        seen = "steady, but not synchronised with others"
        return Check("clock", WARN, seen, "timedatectl set-ntp true")
    return Check("clock", PASS, "steady, synchronised" if synchronised else "steady")


def open_files() -> Check:
    soft, hard = machine.open_files()
    seen = f"{soft} of at most {hard}"
    if soft < OPEN_FILES_WARN:
        return Check("open files", WARN, seen, f"ulimit -n {min(hard, 65_536)}")
    return Check("open files", PASS, seen)


def _within(limit_s: float, work: Callable[[], Result]) -> Result:
    """What `work` returns or raises. When it takes too long, it is left behind in its thread."""
    done: queue.SimpleQueue[Result | Exception] = queue.SimpleQueue()

    def carry() -> None:
        try:
            done.put(work())
        except Exception as error:  # handed to the caller's thread, which raises it
            done.put(error)

    start_thread(carry, "doctor", lasts="what takes too long is left behind")
    try:
        found = done.get(timeout=max(limit_s, 0.1))
    except queue.Empty:
        raise Unavailable(
            f"no answer within {limit_s:.1f} s", fix="holdfast coord status ADDRESS"
        ) from None
    if isinstance(found, Exception):
        raise found
    return found


def _nearest_existing(folder: Path) -> Path:
    folder = folder.resolve()
    while not folder.exists():
        folder = folder.parent
    return folder
