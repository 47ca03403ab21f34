"""The parent of one worker. It outlives the agent, so that an agent's restart loses nothing.

    python -I -S shim.py FOLDER        FOLDER/launch.json says what to run

Or it is forked by the zygote, and forks the worker in turn, which then need not import what the
zygote has imported. It imports four small modules of Holdfast and little of Python: there is one
for each worker, it starts in milliseconds and stays small. It

- claims the worker: the file `claim` appears once, whole, before the worker's process can exist.
  Whoever comes second, started by an agent that could not know, ends with `RACE_LOST`;
- copies the worker's output to its logs and rotates them;
- passes on the first SIGTERM to the worker alone, and ends everything upon SIGUSR1;
- where no control group does it: looks now and then how much memory the worker and all that it
  started hold, and ends them when it is more than they may;
- when the worker has ended, ends all that it left behind, also what had hidden in other sessions
  (orphans become children of the shim);
- then, when nothing is left, writes the file `exit` durably, and ends;
- ends the worker if its agent dies and none comes back in time. If the shim itself is killed, the
  worker dies with it.
"""

# pathlib is a third of what this program would load.
# ruff: noqa: PTH100, PTH104, PTH116, PTH123, PTH208
from __future__ import annotations

import ctypes
import json
import os
import resource
import select
import signal
import sys
import time
from contextlib import suppress
from typing import Any

if __name__ == "__main__":  # executed by its path, with nothing to import from but Python's own
    sys.path.append(os.path.abspath(f"{__file__}/../../.."))

from holdfast.agent import sandbox
from holdfast.system.durable import write_file
from holdfast.system.process_identity import boot, start_ticks

RACE_LOST = 75
_SET_PDEATHSIG = 1
_SET_CHILD_SUBREAPER = 36
_CHUNK_BYTES = 64 * 1024
_REAP_S = 0.02
# The system's killer should take the worker before the shim and the agent.
_OOM_SCORE = 300
# Looking at memory takes at most this part of a core, however many processes and pages there are.
_LOOK_PART = 0.01
_APPENDING = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC


class Log:
    """A file that is rotated at a size; it and the one before it are kept."""

    def __init__(self, path: str, bytes_max: int) -> None:
        self._path = path
        self._bytes_max = bytes_max
        self._lost = 0
        self._handle = os.open(path, _APPENDING, 0o600)
        self._size = os.fstat(self._handle).st_size

    def write(self, data: bytes) -> None:
        """Append. A full disk loses output; it never holds up the worker."""
        notice = b"[holdfast: %d bytes of output were lost: no room]\n" % self._lost
        try:
            while self._lost and notice:
                notice = notice[self._append(notice) :]
            self._lost = 0
            while data:
                data = data[self._append(data) :]
        except OSError:
            self._lost += len(data)

    def _append(self, data: bytes) -> int:
        """How much of it was written; the rest is for the next file, or finds no room."""
        if self._size >= self._bytes_max:
            self._rotate()
        written = os.write(self._handle, data[: self._bytes_max - self._size])
        self._size += written
        return written

    def _rotate(self) -> None:
        """The next file is there before this one gives up its name: after a failure this one is
        still open, and the next output tries again."""
        fresh = os.open(self._path + ".new", _APPENDING | os.O_TRUNC, 0o600)
        try:
            os.rename(self._path, self._path + ".1")
            os.rename(self._path + ".new", self._path)
        except OSError:
            os.close(fresh)
            raise
        os.close(self._handle)
        self._handle, self._size = fresh, 0


class Shim:
    """One worker's life."""

    def __init__(self, folder: str, *, warm: bool = False) -> None:
        """`warm`: `run` returns in the worker's process too, instead of executing a command."""
        self._path = folder
        self._warm = warm
        self._folder = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        with open(f"{folder}/launch.json") as file:
            self._launch: dict[str, Any] = json.load(file)
        self._word = f"{folder}/word"
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._wake, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)
        for number in (signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        self._poll = select.poll()
        self._poll.register(self._wake, select.POLLIN)
        self._outputs: dict[int, Log] = {}
        self._worker = 0
        self._status: int | None = None
        self._asked = False
        self._agent = -1
        self._away_since: float | None = time.monotonic()
        self._kill_at: float | None = None
        self._abandoned = False
        self._memory_bytes_max = 0 if self._launch["cgroup"] else self._launch["memory_bytes_max"]
        self._look_at = 0.0  # when its memory is to be looked at
        self._over_bytes = 0  # what it held when that was too much
        self._short_before = counter_of("/proc/vmstat", "oom_kill")

    def run(self) -> int | None:
        """Everything; the status to end with. None: this is the process of a warm worker."""
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signal.valid_signals())
        self._libc.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        identity = {"pid": os.getpid(), "start_ticks": start_ticks(os.getpid()), "boot": boot()}
        try:
            write_file(self._folder, "claim", json.dumps(identity).encode(), once=True)
        except FileExistsError:
            return RACE_LOST
        if not os.path.samestat(os.stat(self._path), os.fstat(self._folder)):
            return RACE_LOST  # the folder is being removed
        self._attach()
        if not self._fork():
            return None
        while not self._gone():
            self._turn()
        self._drain()
        write_file(self._folder, "exit", json.dumps(self._note()).encode())
        return 0

    # --- starting ------------------------------------------------------------------------------

    def _fork(self) -> int:
        """Make the worker; its number, or 0 in a warm worker itself."""
        launch = self._launch
        ends = {}
        for name in ("out", "err"):
            reader, ends[name] = os.pipe2(os.O_CLOEXEC)
            os.set_blocking(reader, False)
            self._outputs[reader] = Log(launch[name], launch["log_bytes_max"])
            self._poll.register(reader, select.POLLIN)
        every = signal.valid_signals()
        # Blocked until the child has its own handlers: a SIGTERM in between is not lost.
        signal.pthread_sigmask(signal.SIG_BLOCK, every)
        parent = os.getpid()
        self._worker = os.fork()
        if not self._worker:
            try:
                self._become_worker(parent, ends["out"], ends["err"])
                if self._warm:
                    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
                    return 0
                os.execvpe(launch["command"][0], launch["command"], launch["environment"])  # noqa: S606
            except BaseException as error:
                why = f"holdfast: cannot start {launch['command'][0]!r}: {error}\n"
                os.write(2, why.encode())
                os._exit(127)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, every)
        for end in ends.values():
            os.close(end)
        return self._worker

    def _become_worker(self, parent: int, out: int, err: int) -> None:
        launch = self._launch
        os.dup2(out, 1)
        os.dup2(err, 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.setsid()
        user = launch.get("user")
        if launch.get("tmp"):
            try:
                sandbox.enter(sandbox.Plan(**launch["tmp"]))
            except OSError as error:
                if user:
                    raise  # it would see what it must not
                os.write(2, f"holdfast: /tmp is shared with others: {error}\n".encode())
        if launch["cgroup"]:
            with open(f"{launch['cgroup']}/cgroup.procs", "w") as file:
                file.write("0")
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        if launch["cpus"]:
            os.sched_setaffinity(0, launch["cpus"])
        with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
            file.write(str(_OOM_SCORE))
        if user:
            os.setgroups(user["groups"])
            os.setresgid(user["gid"], user["gid"], user["gid"])
            os.setresuid(user["uid"], user["uid"], user["uid"])
        # After both: entering a namespace of users, or becoming another one, resets this.
        self._libc.prctl(_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(127)
        os.chdir(launch["cwd"])
        signal.set_wakeup_fd(-1)
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            with suppress(OSError, ValueError):
                signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signal.valid_signals())

    # --- living --------------------------------------------------------------------------------

    def _turn(self) -> None:
        """Wait for something, and do what it needs."""
        for handle, _ in self._poll.poll(self._patience_ms()):
            if handle == self._wake:
                self._signalled(os.read(self._wake, 4096))
            elif handle == self._agent:
                self._poll.unregister(handle)
                os.close(handle)
                self._agent, self._away_since = -1, time.monotonic()
            else:
                self._copy(handle)
        if self._away_since is not None and self._status is None:
            self._attach()
            self._count_days()
        if self._memory_bytes_max and time.monotonic() >= self._look_at:
            self._look_at_memory()
        if self._status is not None:
            self._kill_all()

    def _patience_ms(self) -> int | None:
        if self._status is not None:
            return int(_REAP_S * 1000)
        waits = [self._launch["look_s"]] if self._away_since is not None else []
        if self._memory_bytes_max:
            waits.append(max(0.0, self._look_at - time.monotonic()))
        return 1 + int(min(waits) * 1000) if waits else None

    def _look_at_memory(self) -> None:
        """End everything if it holds more than it may."""
        since = time.monotonic()
        held = bytes_of(pids_below(os.getpid()), self._memory_bytes_max)
        if held > self._memory_bytes_max:
            self._over_bytes, self._memory_bytes_max = held, 0
            self._kill_all()
        took = time.monotonic() - since
        self._look_at = since + max(self._launch["memory_look_s"], took / _LOOK_PART)

    def _signalled(self, numbers: bytes) -> None:
        if signal.SIGUSR1 in numbers:
            self._kill_all()
        elif signal.SIGTERM in numbers:
            self._ask()

    def _ask(self) -> None:
        if not self._asked and self._status is None:
            self._asked = True
            os.kill(self._worker, signal.SIGTERM)

    def _copy(self, handle: int) -> bool:
        """Copy what there is; whether there may be more."""
        try:
            data = os.read(handle, _CHUNK_BYTES)
        except BlockingIOError:
            return False
        if data:
            self._outputs[handle].write(data)
        else:
            self._poll.unregister(handle)
            os.close(handle)
            del self._outputs[handle]
        return bool(data)

    def _attach(self) -> None:
        """Watch the agent of this machine, if there is one."""
        try:
            with open(self._launch["agent"]) as file:
                agent = json.load(file)
            handle = os.pidfd_open(agent["pid"])
        except (OSError, ValueError):
            return
        if start_ticks(agent["pid"]) != agent["start_ticks"]:
            os.close(handle)
            return
        self._agent, self._away_since = handle, None
        self._poll.register(handle, select.POLLIN)

    def _count_days(self) -> None:
        """Nobody will ask for the worker any more: end it, politely, then not."""
        if self._away_since is None:
            return
        now = time.monotonic()
        if now - self._away_since >= self._launch["away_s"] and not self._abandoned:
            self._abandoned = True
            self._kill_at = now + self._launch["away_notice_s"]
            self._ask()
        if self._kill_at is not None and now >= self._kill_at:
            self._kill_all()

    # --- ending --------------------------------------------------------------------------------

    def _gone(self) -> bool:
        """Take note of children that have ended; whether none is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return True
            if not pid:
                return False
            if pid == self._worker:
                self._status = status

    def _kill_all(self) -> None:
        if self._launch["cgroup"]:
            with suppress(OSError), open(f"{self._launch['cgroup']}/cgroup.kill", "w") as file:
                file.write("1")
        if self._status is None:
            with suppress(ProcessLookupError):
                os.killpg(self._worker, signal.SIGKILL)
        for pid in pids_below(os.getpid()):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)

    def _drain(self) -> None:
        for handle in list(self._outputs):
            while self._copy(handle):
                pass

    def _note(self) -> dict[str, Any]:
        assert self._status is not None
        code = os.waitstatus_to_exitcode(self._status)
        word = ""
        with suppress(OSError), open(self._word) as file:
            word = file.read(16)
        limit, events = self._launch["memory_bytes_max"], f"{self._launch['cgroup']}/memory.events"
        # The second alone says that something was killed for want of memory, not at whose limit.
        at_limit = all(counter_of(events, name) for name in ("oom", "oom_kill"))
        # There it held all that it might; how much more it wanted, nobody knows.
        held = limit if self._launch["cgroup"] and at_limit else self._over_bytes
        short = counter_of("/proc/vmstat", "oom_kill") > self._short_before
        return {
            "code": code if code >= 0 else None,
            "signal": -code if code < 0 else None,
            "word": word,
            "over_memory": bool(held),
            "memory_bytes": held,
            "memory_bytes_max": limit if held else 0,
            "machine_short": short,
            "abandoned": self._abandoned,
        }


# --- footprint ------------------------------------------------------------------------------------
# How much memory a process and all that it has started hold, as the system tells it.
#
# What counts is what was touched and no file could give back, not what was reserved: stacks of
# threads and arenas are reserved by the gigabyte and hardly used.


def pids_below(top: int) -> list[int]:
    """All whose parent is this process, or one of them."""
    found, todo = [], [top]
    while todo:
        children = _children(todo.pop())
        if children is None:
            return _below_by_table(top)
        found += children
        todo += children
    return found


def bytes_of(pids: list[int], enough_bytes: int = 0) -> int:
    """How much these hold together. A page that several share counts in parts for each.

    Unless it is more than `enough_bytes` it may be told too high, which is much quicker: pages that
    are shared then count in full."""
    held = sum(map(_held_bytes, pids))
    return held if held <= enough_bytes else sum(map(_share_bytes, pids))


def counter_of(path: str, *names: str) -> int:
    """The sum of these counters of a file of the system, one a line; without a file: 0."""
    found = 0
    with suppress(OSError), open(path) as file:
        for line in file:
            words = line.split()
            if words[0] in names:
                found += int(words[1])
    return found


def _held_bytes(pid: int) -> int:
    return 1024 * counter_of(f"/proc/{pid}/status", "RssAnon:", "RssShmem:")


def _share_bytes(pid: int) -> int:
    share = 1024 * counter_of(f"/proc/{pid}/smaps_rollup", "Pss_Anon:", "Pss_Shmem:")
    return share or _held_bytes(pid)  # an older system, or a process that lets nobody look


def _children(pid: int) -> list[int] | None:
    """Those of each of its threads; None: this system does not tell them."""
    found: list[int] = []
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []  # it has ended
    for thread in threads:
        try:
            with open(f"/proc/{pid}/task/{thread}/children") as file:
                found += map(int, file.read().split())
        except OSError:
            if os.path.exists(f"/proc/{pid}/task/{thread}/stat"):  # noqa: PTH110
                return None
    return found


def _below_by_table(top: int) -> list[int]:
    """The same from the whole process table, which takes longer."""
    parents: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
                parents.setdefault(int(fields[1]), []).append(int(name))
    found, todo = [], [top]
    while todo:
        children = parents.get(todo.pop(), [])
        found += children
        todo += children
    return found


if __name__ == "__main__":
    os._exit(Shim(sys.argv[1]).run() or 0)
