"""What is wanted on this machine: `wanted.json` in a cluster's folder, and `run/down`.

`holdfast up`, `serve` and `join` say which processes are wanted, and how each is started; `unserve`
takes some away; `holdfast down` says that nothing is. Each is durable before anything is started or
ended for it, so a supervisor that starts in that moment, or after a crash of the machine, sees it.
Only one changes it at a time (`alone`); anybody may read.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from holdfast.supervise.records import Process, run_folder
from holdfast.system import disk
from holdfast.wire.plain import known_fields

# In the environment of what a supervisor starts: it looks once more whether it is wanted.
SUPERVISED_VARIABLE: Final = "HOLDFAST_SUPERVISED"
FILE: Final = "wanted.json"
_DOWN: Final = "down"
_FORMAT: Final = 1
_CLUSTER_FILE: Final = "cluster.json"


@dataclass(frozen=True, slots=True)
class WantedProcess:
    """A process that is to live. `pid` and `start_ticks`: the one that was started when it was
    asked for, which may have no record yet (0: none was); `asked_s`: when that was."""

    kind: str
    name: str
    command: tuple[str, ...]
    asked_s: float
    pid: int = 0
    start_ticks: int = 0
    boot: str = ""

    @property
    def key(self) -> str:
        return f"{self.kind} {self.name}"

    @property
    def asked_for(self) -> Process:
        """The process that was started for it then; it may have ended."""
        return Process(self.kind, self.name, self.pid, self.start_ticks, self.boot)


def read(folder: Path) -> dict[str, WantedProcess]:
    """Everything that is wanted, by `KIND NAME`; nothing after `down`."""
    if is_down(folder):
        return {}
    try:
        found = json.loads((folder / FILE).read_bytes())["processes"]
        known = [known_fields(WantedProcess, each) for each in found]
        wanted = [WantedProcess(**{**each, "command": tuple(each["command"])}) for each in known]
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):
        return {}
    return {one.key: one for one in wanted}


def is_wanted(folder: Path, kind: str, name: str) -> bool:
    return f"{kind} {name}" in read(folder)


def want(folder: Path, processes: Iterable[tuple[Process, tuple[str, ...]]]) -> None:
    """From now on each of these is to live, started by that command. Said again of one that the
    supervisor has given up: it tries again."""
    known, before = read(folder), read(folder)
    for process, command in processes:
        one = WantedProcess(
            process.kind,
            process.name,
            command,
            time.time(),
            process.pid,
            process.start_ticks,
            process.boot,
        )
        old = known.get(one.key)
        same = old is not None and replace(one, asked_s=old.asked_s) == old
        known[one.key] = old if same and old is not None else one
    if known != before:
        _write(folder, known)


def drop(folder: Path, keys: Iterable[str]) -> None:
    """These are not wanted any more. Whoever ends them does so afterwards."""
    known = read(folder)
    left = {key: one for key, one in known.items() if key not in set(keys)}
    if left != known:
        _write(folder, left)


@contextmanager
def alone(
    folder: Path, busy: Callable[[], None] | None = None, *, waits: bool = True
) -> Iterator[bool]:
    """Two that start or end what is wanted here at once do so one after the other. `busy` is called
    if another one has to be waited for. Gives whether it is our turn: without `waits` it is not,
    while another one has it."""
    disk.make_folder(run_folder(folder), 0o700)
    path = run_folder(folder) / "up.lock"
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        ours = True
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            ours = waits
            if busy is not None:
                busy()
            if waits:
                fcntl.flock(handle, fcntl.LOCK_EX)
        yield ours
    finally:
        os.close(handle)


def end(folder: Path) -> None:
    """From now on nothing is to run here."""
    disk.make_folder(run_folder(folder), 0o700)
    disk.replace_durably(run_folder(folder) / _DOWN, b"")
    if (folder / FILE).exists():
        _write(folder, {})


def begin(folder: Path) -> None:
    """Something is to run here: what is said from now on."""
    (run_folder(folder) / _DOWN).unlink(missing_ok=True)


def is_down(folder: Path) -> bool:
    """Whether all was ended here, and nobody has started anything since; or the folder is gone."""
    return (run_folder(folder) / _DOWN).exists() or not (folder / _CLUSTER_FILE).exists()


def stamp(folder: Path) -> tuple[int, int]:
    """Changes whenever what is wanted does: cheap to ask again and again."""
    try:
        found = (folder / FILE).stat()
    except OSError:
        return 0, 0
    return found.st_ino, found.st_mtime_ns


def _write(folder: Path, known: Mapping[str, WantedProcess]) -> None:
    fields = {"format": _FORMAT, "processes": [asdict(known[key]) for key in sorted(known)]}
    disk.replace_durably(folder / FILE, (json.dumps(fields, indent=2) + "\n").encode())
