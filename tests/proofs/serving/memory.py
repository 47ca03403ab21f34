"""What processes hold in memory: before, at the highest, and after."""

from __future__ import annotations

import os
import re
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.proofs.serving.cluster import until

MIB: Final = 1024 * 1024
_RESET_PEAK: Final = "5"  # as `proc(5)` has it


def resident_bytes(pid: int) -> int:
    """Anonymous memory of a process: what it has asked for. Pages of its files come and go with the
    system's wish."""
    return _status(pid)["RssAnon"]


def _status(pid: int) -> dict[str, int]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    pairs = (line.split(":", 1) for line in lines)
    return {name: int(text.split()[0]) * 1024 for name, text in pairs if text.endswith(" kB")}


def allocated_bytes(admin: Path) -> int:
    """What Envoy itself has in use of its memory, without what its allocator keeps at hand."""
    folder = os.open(admin.parent, os.O_RDONLY)  # the address of a socket is a short one
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(60)
        try:
            line.connect(f"/proc/self/fd/{folder}/{admin.name}")
        finally:
            os.close(folder)
        line.sendall(b"GET /memory HTTP/1.1\r\nHost: envoy\r\nConnection: close\r\n\r\n")
        answer = b"".join(iter(lambda: line.recv(65536), b""))
    found = re.search(rb'"allocated":\s*"(\d+)"', answer)
    assert found is not None, answer
    return int(found[1])


@dataclass
class Watched:
    """One process. The peak is of all that is resident, by the system's own count."""

    name: str
    pid: int
    before: int = 0
    peak: int = 0
    after: int = 0

    def begin(self) -> None:
        self.before = resident_bytes(self.pid)
        Path(f"/proc/{self.pid}/clear_refs").write_text(_RESET_PEAK)

    def end(self) -> None:
        found = _status(self.pid)
        self.after = found["RssAnon"]
        self.peak = found["VmHWM"] - found["VmRSS"] + self.after

    def told(self) -> str:
        sizes = (self.before, self.peak, self.after)
        return f"{self.name} {' -> '.join(f'{size / MIB:.0f}' for size in sizes)} MiB"


@dataclass
class Memory:
    """Some processes, from a beginning to an end."""

    processes: list[Watched] = field(default_factory=list)

    def begin(self) -> None:
        for one in self.processes:
            one.begin()

    def end(self) -> None:
        for one in self.processes:
            one.end()

    def await_back(self, most: int, patience_s: float) -> float:
        """Until none has more than `most` bytes more than before; how long it took."""

        def back() -> bool:
            return all(resident_bytes(one.pid) <= one.before + most for one in self.processes)

        what = f"memory is back to where it was and {most / MIB:.0f} MiB"
        try:
            return until(what, back, patience_s)
        finally:
            self.end()

    def told(self) -> str:
        return "; ".join(one.told() for one in self.processes)
