"""The agent's folder: the names in it.

lock              held by the one agent that uses the folder; its process number is in it
agent             who that agent is, for the shims that outlive it
journal           (`journal`)
zygote.*         the zygote's socket, its lock with who holds it, and what went wrong with it
workers/J.N/      the scratch folder of worker N of job J; made before the journal knows of the
                  worker, removed after the journal knows of its end
    launch.json   what its shim runs
    claim         its shim; made once, before the worker exists
    word          what the worker said last of itself: "done" or "left"
    exit          how it ended; written when nothing of it is left
    agent.sock    where it talks to its agent
    secret        its job's, and what proves that it is of the job to workers of other machines:
    *.pem         (`holdfast.system.job_certificates`)
    shim.log      what went wrong with the shim
    tmp/  work/   its TMPDIR, and where it runs when it has no bundle; where it can be, it sees
    var-tmp/      these as /tmp and /var/tmp (`sandbox`)
serving/          files of versions that replicas here hold (`holdfast.serve.replica.model_cache`)
environments/     what jobs that name requirements run in (`environments`)
logs/J.N/         out.log, err.log and the ones before them; the newest are kept
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from holdfast.agent.events import NOBODY, Ending, Identity, Key
from holdfast.agent.processes import identify
from holdfast.system.disk import NO_ROOM, make_folder
from holdfast.system.durable import write_file
from holdfast.wire.errors import BugError, Full, Occupied
from holdfast.wire.limits import STDERR_TAIL_BYTES
from holdfast.wire.plain import known_fields

# Logs of ended workers that stay on an agent's disk; the oldest go first.
WORKER_LOGS_KEPT: Final = 200

_GONE: Final = ".gone-"


class Folders:
    """Paths under an agent's folder, and what stands in the small files there."""

    def __init__(self, home: Path) -> None:
        self.home = home.absolute()
        self.agent = self.home / "agent"
        self.workers = self.home / "workers"
        self.logs = self.home / "logs"
        self.environments = self.home / "environments"

    def make(self) -> None:
        for folder in (self.home, self.workers, self.logs):
            make_folder(folder, 0o700)

    def worker(self, key: Key) -> Path:
        return self.workers / str(key)

    def is_there(self, key: Key) -> bool:
        return self.worker(key).is_dir()

    def log(self, key: Key) -> Path:
        return self.logs / str(key)

    def promise(self, keys: Iterable[Key]) -> None:
        """Make the scratch folders of workers that are about to be accepted; `Full`: no room."""
        try:
            for key in keys:
                self.worker(key).mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            raise Full(
                f"no room for a worker's folder in {self.workers}",
                why=str(error),
                fix=f"make room: df {self.workers}",
            ) from error

    def take(self) -> int:
        """Hold the folder for this process and say so to the shims; `Occupied` if another does."""
        handle = os.open(self.home / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(handle)
            raise Occupied(
                f"{self.home} is in use by another agent",
                why="one folder has one agent",
                fix="stop that agent, or give this one a folder of its own",
            ) from error
        identity = identify(os.getpid())
        if identity is None:
            raise BugError("this process is not in the process table")
        folder = os.open(self.home, os.O_RDONLY | os.O_DIRECTORY)
        try:
            write_file(folder, "agent", json.dumps(identity._asdict()).encode())
        finally:
            os.close(folder)
        return handle

    def present(self) -> list[Key]:
        """Workers whose scratch folder is there."""
        found = []
        for path in self.workers.iterdir():
            job, _, worker = path.name.rpartition(".")
            if job and worker.isdigit() and not path.name.startswith(_GONE):
                found.append(Key(job, int(worker)))
        return found

    def claim(self, key: Key) -> Identity | None:
        """The shim that this worker was started by; None: it was never started. `NOBODY`: nor can
        it be any more."""
        fields = _read(self.worker(key) / "claim")
        return None if fields is None else Identity(**known_fields(Identity, fields))

    def claim_void(self, key: Key) -> bool:
        """Make a claim for nobody, so that no shim can come any more; False: there is one."""
        folder = os.open(self.worker(key), os.O_RDONLY | os.O_DIRECTORY)
        try:
            write_file(folder, "claim", json.dumps(NOBODY._asdict()).encode(), once=True)
        except FileExistsError:
            return False
        finally:
            os.close(folder)
        return True

    def remove_worker(self, key: Key) -> None:
        """Remove a claimed folder. It loses its name first: a late shim looks for that."""
        gone = self.workers / f"{_GONE}{key}"
        self.worker(key).rename(gone)
        shutil.rmtree(gone)

    def finish_removals(self) -> None:
        for path in self.workers.glob(f"{_GONE}*"):
            shutil.rmtree(path)

    def launch(self, key: Key) -> dict[str, Any]:
        return _read(self.worker(key) / "launch.json") or {}

    def environments_in_use(self) -> set[str]:
        """The names of those that workers whose folder is there were started in."""
        found = (self.launch(key).get("venv") for key in self.present())
        return {Path(venv).name for venv in found if venv}

    def ending(self, key: Key) -> Ending | None:
        """How the worker ended, as its shim wrote; None: it did not write it."""
        fields = _read(self.worker(key) / "exit")
        if fields is None:
            return None
        return Ending(**known_fields(Ending, fields) | {"stderr_tail": self.stderr_tail(key)})

    def stderr_tail(self, key: Key) -> str:
        tail = b""
        for name in ("err.log.1", "err.log"):
            tail += _tail(self.log(key) / name)
        return tail[-STDERR_TAIL_BYTES:].decode("utf-8", "replace")

    def shim_words(self, key: Key) -> str:
        return _tail(self.worker(key) / "shim.log").decode("utf-8", "replace").strip()

    def drop_old_logs(self, living: frozenset[Key]) -> None:
        """Keep the logs of the living, and of so many that ended last."""
        ended = [path for path in self.logs.iterdir() if path.name not in set(map(str, living))]
        ended.sort(key=lambda path: path.stat().st_mtime)
        for path in ended[:-WORKER_LOGS_KEPT]:
            shutil.rmtree(path)


def _read(path: Path) -> dict[str, Any] | None:
    """A small JSON file that was made whole; None: there is none."""
    try:
        fields = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    if not isinstance(fields, dict):
        raise BugError(f"{path} holds {fields!r:.100}")
    return fields


def _tail(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - STDERR_TAIL_BYTES))
            return file.read()
    except FileNotFoundError:
        return b""
