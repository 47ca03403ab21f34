"""What the replicas of a machine keep on its disk: versions' files, and what happened to them.

    CACHE/versions/NAME/…        the files of a version; CACHE/bundles: its code (`models.loading`)
    CACHE/used/NAME              locked, shared, by each process that holds the version
    CACHE/loading/NAME.WORKER    locked while this worker loads it: one that is left behind unlocked
                                 says that loading it was the last thing which a process did
    CACHE/deaths/NAME            one line for each such death, until it is loaded
    CACHE/proven/NAME            it was loaded, or tried, on this machine; how it computes here
    CACHE/verified/NAME          its files were read and were right: when, and how they looked
    CACHE/turns/NAME             locked by whoever fetches and tries it: one at a time

Locks are the kernel's: they end with the process, however it ends.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from holdfast.models import loading
from holdfast.models.records import Version
from holdfast.serve.replica.batching import BatchPace
from holdfast.serve.replica.trial import Manner
from holdfast.storage import Blobs
from holdfast.system import logs, process_identity
from holdfast.wire.limits import TRIAL_S

# Replicas of one machine fetch and try a version one after the other. One waits so long at most: a
# trial that hangs has been ended by then. And so often it looks.
TURN_S: Final = TRIAL_S
TURN_LOOK_S: Final = 0.05
# Versions whose files stay on a machine although no replica there holds them: for the way back.
CACHED_VERSIONS_KEPT: Final = 2
# Files of a version that one replica has verified so recently are not read again by the others of
# its machine, which load it at the same time.
VERIFIED_S: Final = 30.0

_FOLDERS: Final = ("used", "loading", "deaths", "proven", "verified", "turns")
_GONE: Final = ".gone-"

log = logs.get(__name__)


class ModelCache:
    """May be used by one thread. Several processes share the folder."""

    def __init__(self, folder: Path, worker: int) -> None:
        self.folder = folder
        self._worker = worker
        self._used: dict[str, int] = {}
        for name in _FOLDERS:
            (folder / name).mkdir(parents=True, exist_ok=True)

    def claim(self, version: Version) -> Path:
        """Where its files are, or will be. They stay until `release`."""
        name = _name(version)
        if name not in self._used:
            self._used[name] = _shared(self.folder / "used" / name)
        return loading.place(version, self.folder)

    def fetch(self, version: Version, blobs: Blobs) -> Path:
        """Its files, verified. They stay until `release`."""
        self.claim(version)
        return loading.fetch(version, blobs, self.folder)

    @contextmanager
    def turn(self, version: Version, enough: Callable[[], bool]) -> Iterator[None]:
        """While the version is fetched and tried: whoever comes second finds it done, and the
        machine's other cores go on answering. Nobody waits for longer than `TURN_S`, nor after
        `enough` says that there is nothing to wait for."""
        until_s = time.monotonic() + TURN_S
        with (self.folder / "turns" / _name(version)).open("w") as file:
            while not enough() and time.monotonic() < until_s:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    time.sleep(TURN_LOOK_S)
            yield

    def present(self, version: Version) -> bool:
        """Whether its files seem to be there: nobody has read them."""
        return loading.present(version, self.folder)

    def verify(self, version: Version) -> None:
        """Its files have just been read, and are right: others on this machine need not read them
        again for `VERIFIED_S`."""
        looks = self._looks(version)
        if looks is not None:
            self._mark("verified", version, {"at_s": time.time(), "looks": looks})

    def verified(self, version: Version) -> bool:
        """Whether a replica of this machine has verified its files just now, and nobody has touched
        them since. Not if the machine was started meanwhile: what it wrote last may be lost."""
        found = self._marked("verified", version)
        try:
            recent = 0.0 <= time.time() - found["at_s"] <= VERIFIED_S
            return recent and found["looks"] is not None and found["looks"] == self._looks(version)
        except (KeyError, TypeError):
            return False

    def release(self, version: Version) -> None:
        """This process does not hold it any more. The newest of those that nobody holds stay."""
        handle = self._used.pop(_name(version), None)
        if handle is not None:
            _touch(handle)
            os.close(handle)
        self._tidy()

    # --- what happened to it ---------------------------------------------------------------------

    def proven(self, version: Version) -> bool:
        return (self.folder / "proven" / _name(version)).exists()

    def manner(self, version: Version, batch_max: int) -> Manner | None:
        """How it computes on this machine with such batches, if somebody has found out."""
        found = self._marked("proven", version)
        try:
            known = Manner(bool(found["batches"]), BatchPace(found["pace"]))
            return known if found["batch_max"] == batch_max else None
        except (ValueError, KeyError, TypeError):
            return None

    def tried(self, version: Version, batch_max: int, manner: Manner) -> None:
        """It was loaded on this machine, in some process, and computes so."""
        found = {"batch_max": batch_max, "batches": manner.batches, "pace": manner.pace.value}
        self._mark("proven", version, found)

    def prove(self, version: Version, batch_max: int, manner: Manner) -> None:
        """It was loaded in a replica: nothing that happened before is held against it."""
        self.tried(version, batch_max, manner)
        (self.folder / "deaths" / _name(version)).unlink(missing_ok=True)

    def forgive(self, version: Version) -> None:
        """Somebody asks for it in spite of what happened."""
        (self.folder / "deaths" / _name(version)).unlink(missing_ok=True)

    def deaths(self, version: Version) -> int:
        """How many processes have died while they loaded it, since it was last loaded."""
        name = _name(version)
        deaths = self.folder / "deaths" / name
        for mark in (self.folder / "loading").glob(f"{name}.*"):
            with suppress(FileNotFoundError), mark.open("r+") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    continue  # it is being loaded there now
                mark.unlink()
                with deaths.open("a") as told:
                    told.write(f"{mark.name}\n")
        try:
            return len(deaths.read_text().splitlines())
        except FileNotFoundError:
            return 0

    @contextmanager
    def loading(self, version: Version) -> Iterator[None]:
        """While the version is loaded in this process."""
        mark = self.folder / "loading" / f"{_name(version)}.{self._worker}"
        with mark.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            try:
                yield
            finally:
                mark.unlink(missing_ok=True)

    # --- private ---------------------------------------------------------------------------------

    def _mark(self, kind: str, version: Version, found: dict[str, Any]) -> None:
        path = self.folder / kind / _name(version)
        draft = path.with_name(f".{path.name}.{self._worker}")
        draft.write_text(json.dumps(found))
        draft.replace(path)

    def _marked(self, kind: str, version: Version) -> Any:
        """What the mark says; None: there is none, or it was cut off."""
        try:
            return json.loads((self.folder / kind / _name(version)).read_bytes())
        except (FileNotFoundError, ValueError):
            return None

    def _looks(self, version: Version) -> dict[str, Any] | None:
        """Sizes and times of its files, and of the folder with its code, in this life of the
        machine; None: some are missing."""
        if not self.present(version):
            return None
        folder = loading.place(version, self.folder)
        names = [*version.files, *([loading.CODE] if version.bundle else [])]
        try:
            looks = {name: (folder / name).stat() for name in names}
        except FileNotFoundError:
            return None
        files = {name: [one.st_size, one.st_mtime_ns] for name, one in looks.items()}
        return {"boot": _boot(), "files": files}

    def _tidy(self) -> None:
        """Remove the files of versions that nobody here holds, but for the last ones."""
        free = sorted(
            (path for path in (self.folder / "used").iterdir() if path.name not in self._used),
            key=lambda path: path.stat().st_mtime,
        )
        for path in free[:-CACHED_VERSIONS_KEPT]:
            with path.open("r+") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    continue  # another replica holds it
                self._discard(path.name)
                path.unlink(missing_ok=True)

    def _discard(self, name: str) -> None:
        """Those that hold it go on: what is mapped stays. It loses its name first, so that nobody
        finds half of it."""
        folder = self.folder / "versions"
        gone = folder / f"{_GONE}{name}.{self._worker}"
        for mark in ("proven", "verified", "turns"):
            (self.folder / mark / name).unlink(missing_ok=True)
        with suppress(FileNotFoundError):
            (folder / name).rename(gone)
        for left in folder.glob(f"{_GONE}*.{self._worker}"):
            shutil.rmtree(left)


def _touch(handle: int) -> None:
    """Used just now. Not by the kernel's own clock, which stands still for milliseconds."""
    now_ns = time.time_ns()
    os.utime(handle, ns=(now_ns, now_ns))


def _shared(path: Path) -> int:
    """A shared lock on the file of this name, which another process may be removing."""
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(handle, fcntl.LOCK_SH)
        _touch(handle)
        try:
            if os.fstat(handle).st_ino == path.stat().st_ino:
                return handle
        except FileNotFoundError:
            pass  # it was removed before we had the lock
        os.close(handle)


def _boot() -> str:
    """Which start of the machine this is; empty where nobody says."""
    try:
        return process_identity.boot()
    except OSError:
        return ""


def _name(version: Version) -> str:
    return loading.place(version, Path()).name
