"""`holdfast doctor`: is this machine ready? Each check says what it saw and how to mend it.

It changes nothing: what it writes is in a temporary folder, or a file that it removes at once. It
prints no secret: addresses are shown without their user and password.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import os
import platform
import queue
import shutil
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, TypeVar

from holdfast.agent import privacy
from holdfast.cli import output, servers
from holdfast.cli.servers import ask
from holdfast.client.private_server import server_over
from holdfast.system.tasks import start_thread
from holdfast.wire.errors import HoldfastError, Unavailable

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
TRIPS = 5
_TIME_ERROR: Final = 5  # adjtimex: the kernel's clock is not synchronised
_TIMEX_BYTES: Final = 512  # struct timex has 208 on Linux; zeros mean "only tell"


@dataclass(frozen=True)
class DoctorCheck:
    """One finding. `fix` is a command or a sentence, empty when there is nothing to mend."""

    name: str
    state: str
    seen: str
    fix: str = ""


@dataclass(frozen=True)
class DoctorReport:
    checks: tuple[DoctorCheck, ...]
    took_ms: int

    @property
    def ok(self) -> bool:
        return all(check.state != FAIL for check in self.checks)


def examine(data: Path, address: str | None = None) -> DoctorReport:
    """Every check, in a bounded time altogether."""
    started = time.monotonic()
    folder = _nearest_existing(data)
    checks = [python(), torch(), fsync(folder), disk(folder), port(), clock(), open_files()]
    left_s = DOCTOR_S - (time.monotonic() - started)
    checks.insert(2, coordination(address, left_s))
    checks.append(tmp())
    return DoctorReport(tuple(checks), round((time.monotonic() - started) * 1_000))


def show(report: DoctorReport, *, as_json: bool) -> None:
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


def python() -> DoctorCheck:
    found = f"{platform.python_version()} at {sys.executable}"
    if sys.version_info[:2] < PYTHON_MIN:
        return DoctorCheck("python", FAIL, found, "install Python 3.11 or newer")
    return DoctorCheck("python", PASS, found)


def torch() -> DoctorCheck:
    """Only whether it is there: importing it would take longer than all other checks together."""
    if importlib.util.find_spec("torch") is None:
        seen = "not installed; training and serving need it, coordination does not"
        return DoctorCheck("torch", WARN, seen, "pip install 'holdfast[train]'")
    return DoctorCheck("torch", PASS, importlib.metadata.version("torch"))


def tmp() -> DoctorCheck:
    """Whether a worker can have a /tmp of its own."""
    found = privacy.found(DOCTOR_TMP_S)
    if found.kind:
        return DoctorCheck("tmp", PASS, "each worker has a /tmp of its own")
    seen = f"workers share /tmp with all that runs here: {found.reason}"
    return DoctorCheck("tmp", WARN, seen, privacy.FIX)


def coordination(address: str | None, limit_s: float) -> DoctorCheck:
    """A real client against a real server: the given one, or one of ours made for the purpose."""
    # The work bounds itself, and tidies up; the limit around it is for what cannot be bounded.
    work_s = 0.8 * limit_s

    def trip() -> RoundTrip:
        return round_trip_to(address, work_s) if address else round_trip_here(work_s)

    try:
        found = _within(limit_s, trip)
    except HoldfastError as error:
        reason = f"{error.what} ({error.why})" if error.why else error.what
        return DoctorCheck("coordination", FAIL, reason, error.fix)
    where = found.address if address else "a throwaway server"
    seen = f"{found.median_ms:.1f} ms round trip to {where}, version {found.version}"
    return DoctorCheck("coordination", PASS, seen)


def fsync(folder: Path) -> DoctorCheck:
    """The median time until a small write is on the disk; every acknowledged write waits for it."""
    block = b"holdfast" * 64
    samples: list[float] = []
    deadline = time.monotonic() + DOCTOR_FSYNC_S
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            while len(samples) < DOCTOR_FSYNC_SAMPLES_MAX and time.monotonic() < deadline:
                file.write(block)
                before = time.perf_counter()
                sync_file(file.fileno())
                samples.append((time.perf_counter() - before) * 1_000)
    except OSError as error:
        fix = f"make it writable: chmod u+rwx {folder}, or choose another with --data"
        return DoctorCheck("fsync", FAIL, f"cannot write in {folder}: {error.strerror}", fix)
    median_ms = statistics.median(samples)
    seen = f"{median_ms:.2f} ms median of {len(samples)} in {folder}"
    if median_ms > FSYNC_MS_WARN:
        return DoctorCheck("fsync", WARN, seen, "put the data folder on a local SSD: --data DIR")
    return DoctorCheck("fsync", PASS, seen)


def disk(folder: Path) -> DoctorCheck:
    usage = shutil.disk_usage(folder)
    seen = f"{usage.free / GIB:.1f} GiB free of {usage.total / GIB:.1f} at {folder}"
    fix = "free some room, or choose another folder with --data"
    if usage.free < DISK_FREE_BYTES_MIN:
        return DoctorCheck("disk", FAIL, seen, fix)
    if usage.free < DISK_FREE_BYTES_WARN:
        return DoctorCheck("disk", WARN, seen, fix)
    return DoctorCheck("disk", PASS, seen)


def port(number: int = DEFAULT_PORT) -> DoctorCheck:
    """Whether the default port is free, or held by a server of the right kind."""
    where = f"127.0.0.1:{number}"
    if not is_listening(number):
        return DoctorCheck("port", PASS, f"{where} is free")
    answer = ask("127.0.0.1", number, "srvr", timeout_s=0.3)
    if answer.startswith("Zookeeper version"):
        return DoctorCheck("port", PASS, f"a coordination server listens on {where}")
    fix = "choose another: holdfast coord serve --listen 127.0.0.1:2182"
    return DoctorCheck("port", WARN, f"another program listens on {where}", fix)


def clock() -> DoctorCheck:
    """Leases are measured on the monotonic clock; the wall clock only dates records."""
    skew_ms = measure_skew_ms()
    year = time.gmtime().tm_year
    if year < 2024:
        fix = "set the date: timedatectl set-ntp true"
        return DoctorCheck("clock", FAIL, f"the wall clock says {year}", fix)
    if abs(skew_ms) > CLOCK_SKEW_MS_WARN:
        seen = f"the wall clock moved {skew_ms:+.0f} ms against the monotonic one"
        return DoctorCheck(
            "clock", WARN, seen, "something is setting the clock: look at the time service"
        )
    synchronised = is_synchronised()
    if synchronised is False:
        seen = "steady, but not synchronised with others"
        return DoctorCheck("clock", WARN, seen, "timedatectl set-ntp true")
    return DoctorCheck("clock", PASS, "steady, synchronised" if synchronised else "steady")


def open_files() -> DoctorCheck:
    soft, hard = open_file_limits()
    seen = f"{soft} of at most {hard}"
    if soft < OPEN_FILES_WARN:
        return DoctorCheck("open files", WARN, seen, f"ulimit -n {min(hard, 65_536)}")
    return DoctorCheck("open files", PASS, seen)


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


@dataclass(frozen=True)
class RoundTrip:
    """What was seen. `address` has no secret in it."""

    address: str
    version: str
    median_ms: float


def round_trip_to(address: str, limit_s: float) -> RoundTrip:
    """Ask the plane at `address`. Reads only: nothing is written there."""
    from holdfast.coordination import connect, inspection

    address = servers.with_scheme(address)
    place = servers.places(address)[0]
    took_ms = []
    with connect(address, timeout_s=limit_s, operation_timeout_s=limit_s) as session:
        for _ in range(TRIPS):
            took_ms.append(inspection.round_trip_s(session) * 1_000)
        shown = session.address
    status = servers.status(place.host, place.port, timeout_s=1.0, tls=place.tls)
    return RoundTrip(shown, status.version or "not told", statistics.median(took_ms))


def round_trip_here(limit_s: float) -> RoundTrip:
    """Start a server over a temporary folder, ask it, and end it."""
    deadline = time.monotonic() + limit_s
    with tempfile.TemporaryDirectory(prefix="holdfast-doctor-") as folder:
        data = Path(folder) / "coord"
        with server_over(data, deadline) as address:
            left_s = max(deadline - time.monotonic(), 0.1)
            return round_trip_to(f"zk://{address}?secret_file={data}/access", left_s)


def sync_file(descriptor: int) -> None:
    """Until the bytes are on the disk, the way our log does it."""
    getattr(os, "fdatasync", os.fsync)(descriptor)


def is_listening(port: int) -> bool:
    """Whether something on this machine accepts connections on the port."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=0.3).close()
    except OSError:
        return False
    return True


def measure_skew_ms(window_s: float = 0.05) -> float:
    """How far the wall clock ran ahead of the monotonic one in a short window."""
    wall, steady = time.time(), time.monotonic()
    time.sleep(window_s)
    return ((time.time() - wall) - (time.monotonic() - steady)) * 1_000


def is_synchronised() -> bool | None:
    """Whether the kernel says that a time service steers the clock; None when it does not tell."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        state: int = ctypes.CDLL(None, use_errno=True).adjtimex(
            ctypes.create_string_buffer(_TIMEX_BYTES)
        )
    except (OSError, AttributeError):
        return None
    return None if state < 0 else state != _TIME_ERROR


def open_file_limits() -> tuple[int, int]:
    """How many files this process may open, and how far that may be raised."""
    import resource

    return resource.getrlimit(resource.RLIMIT_NOFILE)
