"""Small file systems for the folders of hosts, which can be filled to the last byte. Needs root.

Each is a file system in memory of its own, named after the run: `close` takes all of them away and
leaves what was in them in their place, `sweep` takes away those of runs that were killed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Final

from holdfast.system.disk import NO_ROOM
from tests.proofs.chaos.network import COMMAND_S, PREFIX, lives, run_id

# More than a host of a run ever needs, and little enough to be filled at once.
SIZE_MIB: Final = 24
BALLAST: Final = "ballast"
_CHUNKS: Final = (1 << 20, 1 << 12, 1)


def missing() -> str:
    """Why there can be no small disks here; empty: there can."""
    if os.geteuid() != 0:
        return "only root mounts file systems (sudo)"
    for program in ("mount", "umount"):
        if shutil.which(program) is None:
            return f"{program} is not installed (as root: apt-get install -y mount)"
    with tempfile.TemporaryDirectory(prefix="holdfast-chaos-probe-") as folder:
        mounted = _run(["mount", "-t", "tmpfs", "-o", "size=1m", f"{PREFIX}{run_id()}", folder])
        if mounted.returncode != 0:
            return f"this machine mounts nothing: {mounted.stderr.strip()}"
        _unmount(folder)
    return ""


class Disks:
    """The disks of one run, by host. Not thread-safe."""

    def __init__(self) -> None:
        self._folders: dict[str, Path] = {}
        self._fills: Counter[str] = Counter()

    def __contains__(self, host: str) -> bool:
        return host in self._folders

    def add(self, host: str, folder: Path) -> None:
        """That empty folder is a disk of its own from now on."""
        folder.mkdir(parents=True, exist_ok=True)
        source = f"{PREFIX}{run_id()}-{host}"
        options = f"size={SIZE_MIB}m,mode=0700"
        done = _run(["mount", "-t", "tmpfs", "-o", options, source, str(folder)])
        if done.returncode != 0:
            raise RuntimeError(f"{folder} cannot be a disk of its own: {done.stderr.strip()}")
        self._folders[host] = folder

    def fill(self, host: str) -> None:
        """Not a byte more is written there. Twice filled is twice to be freed."""
        self._fills[host] += 1
        _fill(self._folders[host] / BALLAST)

    def press(self) -> None:
        """What was freed meanwhile on a disk that is to be full is taken, too. Asked often."""
        for host in +self._fills:
            _fill(self._folders[host] / BALLAST)

    def full(self, host: str) -> bool:
        """Whether it is filled now."""
        return self._fills[host] > 0

    def free(self, host: str) -> None:
        self._fills[host] -= 1
        if self._fills[host] == 0:
            (self._folders[host] / BALLAST).unlink()

    def close(self) -> None:
        """Nobody uses them any more: they go, and what was in them stays for whoever looks."""
        folders, self._folders = self._folders, {}
        for folder in folders.values():
            (folder / BALLAST).unlink(missing_ok=True)
            kept = folder.with_name(f"{folder.name}.kept")
            with suppress(shutil.Error):  # a socket cannot be copied
                shutil.copytree(folder, kept, symlinks=True)
            _unmount(str(folder))
            with suppress(OSError):
                folder.rmdir()
                kept.rename(folder)


def mounted() -> dict[str, str]:
    """The disks of all runs that are there: the place of each, and its name."""
    found = {}
    for line in Path("/proc/self/mounts").read_text().splitlines():
        source, place, kind = line.split()[:3]
        if kind == "tmpfs" and source.startswith(PREFIX):
            found[place] = source
    return found


def sweep() -> list[str]:
    """Take away what runs have left that were killed; what it was, in words."""
    words = []
    for place, source in mounted().items():
        if not lives("-".join(source.removeprefix(PREFIX).split("-")[:2])):
            _unmount(place)
            words.append(f"disk {source} at {place}")
    return words


def _fill(ballast: Path) -> None:
    handle = os.open(ballast, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        for size_bytes in _CHUNKS:
            _write_until_full(handle, bytes(size_bytes))
    finally:
        os.close(handle)


def _write_until_full(handle: int, chunk: bytes) -> None:
    try:
        while os.write(handle, chunk):
            pass
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise


def _unmount(place: str) -> None:
    # Lazily: a process that is just dying may still have a file open there.
    _run(["umount", "--lazy", place])


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=COMMAND_S)
