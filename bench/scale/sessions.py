"""`python -m bench.scale.sessions [--json]`: what clients cost the embedded coordination server.

Plain sockets with a session each, of which each pings every 2 s, as agents' clients would at least
do. Measured on the server's process: resident memory of a session and of a watch, processor time
of a ping and of an event to one watcher; and by the clock, from a write to the last of all events.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any, Final

from bench.coordination import wire
from bench.coordination.watchers import Crowd
from bench.scale import over_server
from tests.servers.embedded import EmbeddedServer

SIZES = (1_000, 4_000, 8_000)
CHANGES = 5
PINGS = 5
WATCHES_EACH = 20
_PING: Final = struct.pack("!iii", 8, -2, 11)
_TICK_S: Final = 1 / os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * _TICK_S


def resident_kb(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1])
    raise RuntimeError(f"process {pid} has no memory")


def ping_all(crowd: Crowd) -> None:
    for link in crowd.links:
        link.socket.sendall(_PING)
    for link in crowd.links:
        link.frame()


def measure(server: EmbeddedServer, size: int) -> dict[str, Any]:
    pid = server.pid
    empty_kb, empty_s = resident_kb(pid), cpu_s(pid)
    crowd = Crowd(server.port, size)
    joined_kb, joined_s = resident_kb(pid), cpu_s(pid)
    for _ in range(PINGS):
        ping_all(crowd)
    pinged_s = cpu_s(pid)
    took, told_s = [], 0.0
    for _ in range(CHANGES):
        crowd.watch()
        before_s = cpu_s(pid)
        seconds, wrong = crowd.change()
        told_s += cpu_s(pid) - before_s
        took.append(seconds)
        assert not wrong, f"{wrong} events were wrong"
    before_kb = resident_kb(pid)
    for number in range(WATCHES_EACH):
        path = b"/bench/none-%d" % number
        numbers = [link.send(3, wire.get_body(path, watch=True)) for link in crowd.links]
        for link, xid in zip(crowd.links, numbers, strict=True):
            link.answer(xid)
    watched_kb = resident_kb(pid)
    crowd.close()
    return {
        "sessions": size,
        "kb_per_session": round((joined_kb - empty_kb) / size, 2),
        "us_per_new_session": round(1e6 * (joined_s - empty_s) / size, 1),
        "us_per_ping": round(1e6 * (pinged_s - joined_s) / size / PINGS, 1),
        "us_per_event": round(1e6 * told_s / size / CHANGES, 1),
        "ms_until_all_told": round(1e3 * sorted(took)[len(took) // 2], 1),
        "bytes_per_watch": round(1024 * (watched_kb - before_kb) / size / WATCHES_EACH),
    }


if __name__ == "__main__":
    over_server.run("sessions", __doc__, SIZES, measure)
