"""Virtual environments for jobs that name requirements: one for each lock, for all workers of a
machine that have it.

    environments/KEY/          an environment; `holdfast.json` in it says how much it holds
    environments/.tmp-KEY-*/   one that is being made, or was when its agent died

One is made under a name of its own and gets its name when it is whole. Whoever finds one that is
not as it was made (a machine that lost its power) makes it anew. Workers run its Python, which sees
what the agent's own sees: Holdfast, and torch. pip runs as whoever the worker runs as; a queue's
user shares none with others. What pip says is in the log of the worker that it is made for.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shutil
import signal
import site
import stat
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from holdfast.agent import as_user, processes
from holdfast.agent.events import Event, Key, Preparing
from holdfast.agent.requirements import FAILED, CannotPrepare, Made, RequirementsLock, surplus
from holdfast.system import logs
from holdfast.system.tasks import WAITED, Tasks
from holdfast.wire.limits import KILL_AGAIN_S, STDERR_TAIL_BYTES

# pip may take so long: some gigabytes over a slow line, or a build. It is not held to progress.
ENVIRONMENT_MAKE_S: Final = 3_600.0

MARKER: Final = "holdfast.json"
_DRAFT: Final = ".tmp-"
_GONE: Final = ".gone-"
_RUNNER: Final = Path(as_user.__file__)
_CACHE: Final = "__pycache__"
_TAIL_LINES: Final = 12
_CAREFULLY: Final = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_AGENT: Final[Mapping[str, Any]] = {}
_HAS_PIP: Final = "import sys, importlib.util as u; sys.exit(u.find_spec('pip') is None)"
_PIP: Final = ("install", "--disable-pip-version-check", "--no-input", "--progress-bar", "off")

log = logs.get(__name__)


@dataclass(frozen=True, slots=True)
class Making:
    """What is needed to make one: for which worker, with what in the environment of pip, from
    which code, and into which log pip writes. `owner`: whom it runs as, and what that one sees of
    the machine, if that is not who the agent is (`as_user`); it is told the folder first."""

    key: Key
    lock: RequirementsLock
    environment: dict[str, str]
    code: Path | None
    log: Path
    owner: Callable[[Path], dict[str, Any]] | None = None


class Environments:
    """The environments below one agent's folder. Used from its loop alone. `in_use`: the keys of
    those that workers here were started with. Events go to `tell`."""

    def __init__(
        self, home: Path, tell: Callable[[Event], None], in_use: Callable[[], Iterable[str]]
    ) -> None:
        self._home = home
        self._tell = tell
        self._in_use = in_use
        self._making: dict[str, asyncio.Task[Path]] = {}
        self._tasks = Tasks(WAITED)
        self._waiting: dict[str, set[Key]] = {}
        self._given: dict[Key, str] = {}
        self._names = threading.Lock()  # who takes one, and who removes some

    async def get(self, making: Making) -> Path:
        """The folder of the worker's environment; made now, if it is not there. `CannotPrepare`:
        it cannot be made, and trying again does not help. Whoever waits owns what is being made:
        it is called off when nobody waits any more."""
        lock, worker = making.lock, making.key
        self._given[worker] = lock.key
        if lock.key not in self._making:
            found = await asyncio.to_thread(self._found, lock.key)
            if found is not None:
                return found
        if lock.key not in self._making:  # nobody else has begun meanwhile
            self._making[lock.key] = self._tasks.start(self._make(making), "environment")
        task = self._making[lock.key]
        waiting = self._waiting.setdefault(lock.key, set())
        waiting.add(worker)
        self._tell(Preparing(worker, lock.doing, time.time()))
        try:
            return await asyncio.shield(task)
        finally:
            waiting.discard(worker)
            self._tell(Preparing(worker, "", time.time()))
            if not waiting and self._making.get(lock.key) is task:
                del self._making[lock.key]
                task.cancel()  # unless it is done

    def forget(self, worker: Key) -> None:
        """The worker has ended."""
        self._given.pop(worker, None)

    async def close(self) -> None:
        """Make none any more; return when nothing of it runs."""
        await self._tasks.close()

    # --- what is there ---------------------------------------------------------------------------

    def _found(self, key: str) -> Path | None:
        """The environment of this name, if it is whole; it is in use from now on."""
        folder = self._home / key
        with self._names:
            if not folder.is_dir():
                return None
            damage = _damage(folder)
            if not damage:
                os.utime(folder / MARKER)
                return folder
            log.warning("an environment is made anew", key=key, why=damage)
            folder.rename(self._home / f"{_GONE}{secrets.token_hex(8)}")
            return None

    async def tidy(self) -> None:
        """Remove what nobody needs: old ones, those beyond the bounds, and what was never
        finished."""
        given = {*self._given.values(), *self._making}
        await asyncio.to_thread(self._tidy, given, time.time())

    def _tidy(self, given: set[str], now_s: float) -> None:
        if not self._home.is_dir():
            return
        with self._names:
            for key in surplus(list(_made(self._home)), {*given, *self._in_use()}, now_s):
                log.info("an environment is removed", key=key)
                (self._home / key).rename(self._home / f"{_GONE}{secrets.token_hex(8)}")
        for path in self._home.iterdir():
            draft = path.name.startswith(_DRAFT)
            wanted = draft and path.name[len(_DRAFT) :].partition("-")[0] in given
            if path.name.startswith(_GONE) or (draft and not wanted):
                shutil.rmtree(path, ignore_errors=True)

    # --- making ----------------------------------------------------------------------------------

    async def _make(self, making: Making) -> Path:
        key = making.lock.key
        draft = self._home / f"{_DRAFT}{key}-{secrets.token_hex(4)}"
        since_s = time.monotonic()
        log.info("an environment is made", key=key, worker=str(making.key))
        try:
            async with asyncio.timeout(ENVIRONMENT_MAKE_S):
                await self._install(making, draft)
            folder = await asyncio.to_thread(self._finish, draft / "env", key)
        except TimeoutError:
            raise CannotPrepare(f"{FAILED} within {ENVIRONMENT_MAKE_S:g} s") from None
        except (_CreationFailed, OSError) as error:
            raise CannotPrepare(_failure_text(error)) from None
        finally:
            await asyncio.to_thread(shutil.rmtree, draft, ignore_errors=True)
        took_s = round(time.monotonic() - since_s, 1)
        log.info("an environment is there", key=key, took_s=took_s)
        return folder

    async def _install(self, making: Making, draft: Path) -> None:
        """Make it in `draft/env`, and let pip fill it."""
        code = await asyncio.to_thread(_begin, draft, making)
        env = draft / "env"
        # These are the agent's own, and know nothing of the job.
        ours = replace(making, environment=dict(os.environ))
        await self._run(ours, draft, _venv(env), draft)
        await asyncio.to_thread(_let_see, env)
        python = str(env / "bin" / "python")
        try:
            await self._run(ours, draft, [python, "-c", _HAS_PIP], draft)
        except _CreationFailed:
            await self._run(ours, draft, [python, "-m", "ensurepip"], draft)
        line = [python, "-m", "pip", *_PIP, "-r", str(draft / "requirements.txt")]
        if making.lock.constraints:
            line += ["-c", str(draft / "constraints.txt")]
        owner = making.owner
        await self._run(
            making, draft, line, code, await asyncio.to_thread(owner, draft) if owner else {}
        )

    async def _run(
        self,
        making: Making,
        draft: Path,
        line: list[str],
        cwd: Path,
        owner: Mapping[str, Any] = _AGENT,
    ) -> None:
        """Run a program to its end, with its output in the log. `owner`: as whom, if not as the
        agent. `_CreationFailed`, with its last lines, if it does not end well."""
        tmp = "/tmp" if owner else str(draft / "tmp")  # noqa: S108 - what such a one has there
        plan = {
            "command": line,
            "environment": making.environment | {"TMPDIR": tmp},
            "cwd": str(cwd),
            "parent": os.getpid(),
            **owner,
        }
        file = draft / "plan.json"
        file.write_text(json.dumps(plan))
        child, begun = _started(file, making.log)
        held = os.pidfd_open(child.pid)
        try:
            await processes.readable(held)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            with suppress(TimeoutError):
                async with asyncio.timeout(KILL_AGAIN_S):
                    await processes.readable(held)
            child.poll()
            os.close(held)
            file.unlink(missing_ok=True)  # it may hold a token for an index
        if child.returncode != 0:
            tail = await asyncio.to_thread(_tail, making.log, begun)
            raise _CreationFailed(
                tail or f"{Path(line[0]).name} ended with status {child.returncode}"
            )

    def _finish(self, env: Path, key: str) -> Path:
        """Give it its name. What pip wrote down of where it is goes along."""
        folder = self._home / key
        _settle(env, folder)
        files, size = _counted(env)
        (env / MARKER).unlink(missing_ok=True)
        handle = os.open(env / MARKER, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        with os.fdopen(handle, "w") as file:
            json.dump({"files": files, "bytes": size}, file)
        with self._names:
            if folder.exists():
                folder.rename(self._home / f"{_GONE}{secrets.token_hex(8)}")
            env.rename(folder)
        return folder


def _started(plan: Path, logged: Path) -> tuple[subprocess.Popen[bytes], int]:
    """What the plan says, as a process; and where in the log its output begins."""
    with logged.open("ab") as out:
        begun = out.tell()
        child = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_RUNNER), str(plan)],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            cwd="/",
            start_new_session=True,
        )
    return child, begun


class _CreationFailed(Exception):
    """A program did not end well; its last lines."""


def _failure_text(error: Exception) -> str:
    """pip's last lines, then one that says what happened: it ends with pip's own word for it."""
    lines = [line.rstrip() for line in str(error).splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith("error")]
    last = (errors or lines or [type(error).__name__])[-1]
    return "\n".join([*lines[-_TAIL_LINES:], f"{FAILED}: pip install: {last}"])


def _begin(draft: Path, making: Making) -> Path:
    """Lay out what pip needs; where it runs."""
    draft.parent.mkdir(mode=0o700, exist_ok=True)
    draft.mkdir()
    draft.chmod(0o755)
    (draft / "tmp").mkdir(mode=0o700)
    making.log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = making.lock
    for name, lines in (("requirements", lock.lines), ("constraints", lock.constraints)):
        path = draft / f"{name}.txt"
        path.write_text("".join(f"{line}\n" for line in lines))
        path.chmod(0o644)
    source = draft / "source"
    if lock.local and making.code is not None:
        # Builds write beside the code, and bundles are shared.
        shutil.copytree(making.code, source, symlinks=True)
    else:
        source.mkdir(mode=0o755)
    return source


def _venv(env: Path) -> list[str]:
    return [sys.executable, "-m", "venv", "--system-site-packages", "--without-pip", str(env)]


def _let_see(env: Path) -> None:
    """Let its Python see what ours sees. If ours is of a virtual environment itself, the system's
    packages are not that one's."""
    places = dict.fromkeys([sysconfig.get_path("purelib"), sysconfig.get_path("platlib")])
    if site.ENABLE_USER_SITE and site.USER_SITE:
        places[site.USER_SITE] = None
    lines = [f"import site; site.addsitedir({place!r})\n" for place in places]
    found = next((env / "lib").glob("python*/site-packages"))
    # After all that pip puts there: what a job asks for goes before what the agent has.
    (found / "zz-holdfast-agent.pth").write_text("".join(lines))


def _settle(env: Path, folder: Path) -> None:
    """Let its scripts name the place where it will be; and let others read what pip has made,
    whatever its umask was: workers of a queue's user do. Who comes so far is decided above it. What
    a stranger's build has left there may be anything, so no link is followed."""
    for here, _, names, place in os.fwalk(env):
        os.fchmod(place, os.fstat(place).st_mode | 0o555)
        for name in names:
            try:
                handle = os.open(name, _CAREFULLY, dir_fd=place)
            except OSError:
                continue  # a link, or a socket
            with os.fdopen(handle, "r+b") as file:
                mode = os.fstat(handle).st_mode
                if not stat.S_ISREG(mode):
                    continue
                os.fchmod(handle, mode | 0o444 | (0o111 if mode & 0o100 else 0))
                if here == str(env / "bin") and bytes(env) in (text := file.read()):
                    file.seek(0)
                    file.truncate()
                    file.write(text.replace(bytes(env), bytes(folder)))


def _counted(folder: Path) -> tuple[int, int]:
    """How many files there are, and their size; without what Python adds as it goes."""
    files = size = 0
    for here, folders, names in os.walk(folder):
        if _CACHE in folders:
            folders.remove(_CACHE)
        for name in names:
            if name != MARKER:
                files += 1
                size += os.lstat(Path(here, name)).st_size
    return files, size


def _damage(folder: Path) -> str:
    """What an environment lacks of what it was made with; empty: nothing."""
    try:
        made = json.loads((folder / MARKER).read_bytes())
        found = dict(zip(("files", "bytes"), _counted(folder), strict=True))
        python = (folder / "bin" / "python").resolve(strict=True)
    except (OSError, ValueError) as error:
        return str(error)
    # More may be there: some packages write beside their code.
    if found["files"] < made["files"] or found["bytes"] < made["bytes"]:
        return f"it holds {found}, and was made with {made}"
    return "" if os.access(python, os.X_OK) else f"{python} cannot be run"


def _made(home: Path) -> Iterable[Made]:
    for path in home.iterdir():
        if path.name.startswith((_DRAFT, _GONE)):
            continue
        try:
            marker = path / MARKER
            size = int(json.loads(marker.read_bytes())["bytes"])
            yield Made(path.name, marker.stat().st_mtime, size)
        except (OSError, ValueError, KeyError, TypeError):
            yield Made(path.name, 0.0, 0)  # torn: nobody can use it


def _tail(path: Path, begun: int) -> str:
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(begun, end - STDERR_TAIL_BYTES))
        return file.read().decode(errors="replace").strip()
