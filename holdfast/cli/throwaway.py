"""The doctor's round trip: to a server that is there, or to one for this command alone."""

from __future__ import annotations

import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from holdfast.cli import servers, words
from holdfast.client.private_server import server_over

TRIPS = 5


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
