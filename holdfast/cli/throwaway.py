"""A server for one command: the doctor's round trip, and a look at what a cluster has left."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from holdfast.cli import servers, words
from holdfast.wire.errors import TerminalError, Unavailable

TRIPS = 5
# If this process is killed before it ends the server, the server ends by itself.
LINGER_S = 5


@dataclass(frozen=True)
class RoundTrip:
    """What was seen. `address` has no secret in it."""

    address: str
    version: str
    median_ms: float


def round_trip_to(address: str, limit_s: float) -> RoundTrip:
    """Ask the plane at `address`. Reads only: nothing is written there."""
    from holdfast.coordination import connect, look

    address = servers.with_scheme(address)
    place = servers.places(address)[0]
    took_ms = []
    with connect(address, timeout_s=limit_s, operation_timeout_s=limit_s) as session:
        for _ in range(TRIPS):
            took_ms.append(look.round_trip_s(session) * 1_000)
        shown = session.address
    status = words.status(place.host, place.port, timeout_s=1.0, tls=place.tls)
    return RoundTrip(shown, status.version or "not told", statistics.median(took_ms))


def round_trip_here(limit_s: float) -> RoundTrip:
    """Start a server over a temporary folder, ask it, and end it."""
    deadline = time.monotonic() + limit_s
    with tempfile.TemporaryDirectory(prefix="holdfast-doctor-") as folder:
        data = Path(folder) / "coord"
        with server_over(data, deadline) as address:
            left_s = max(deadline - time.monotonic(), 0.1)
            return round_trip_to(f"zk://{address}?secret_file={data}/access", left_s)


@contextmanager
def server_over(data: Path, deadline: float) -> Iterator[str]:
    """The address of a server over this folder, which is killed at the end."""
    command = [sys.executable, "-m", "holdfast.coordination.embedded"]
    server = subprocess.Popen(
        [*command, "--data", str(data), "--listen", "127.0.0.1:0", "--linger", str(LINGER_S)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=_environment(),
    )
    try:
        yield _address_of(server, data, deadline)
    finally:
        server.kill()
        server.communicate()


def _address_of(server: subprocess.Popen[bytes], data: Path, deadline: float) -> str:
    while time.monotonic() < deadline:
        if server.poll() is not None:
            said = server.communicate()[1].decode(errors="replace").strip().splitlines()
            raise TerminalError(
                "the embedded server ended while it started",
                why=said[-1] if said else f"exit code {server.returncode}",
                fix="holdfast coord serve --data ./coord",
            )
        try:
            return str(json.loads((data / "server.json").read_text())["address"])
        except FileNotFoundError:
            time.sleep(0.01)
    raise Unavailable(
        "the embedded server did not listen in time",
        why="this machine is slow, or very busy",
        fix="holdfast --log-level debug coord serve --data ./coord",
    )


def _environment() -> dict[str, str]:
    """Ours, with this very package first on the path, wherever it was imported from."""
    root = str(Path(__file__).resolve().parents[2])
    return {**os.environ, "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])}
