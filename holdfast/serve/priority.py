"""Processes and threads that answer requests go before those that only look after things.

    give_way()                      # a process that looks after things: a controller
    lower_own_priority()            # one thread of a process that answers
    lower_first_thread(pid)         # the first thread of another process
    apart = OwnSession()                 # a process, and what it starts, that nobody waits for, ...
    with apart.patiently("m@7", 10.0):    # ... but for whoever waits for this: then as all others
        ...

`nice` alone does not do that, for two reasons. Where nobody has set up anything else, Linux shares
the cores among sessions first (`autogroup`), and goes by `nice` only within each of them: what a
replica loads would weigh as much as all of Envoy. And whoever runs may finish his slice of time
before others get the core: some milliseconds, for each process that a request goes through. One
that has asked for a longer slice than others is interrupted at once by each of them that wakes up
(Linux 6.12 and newer; older ones go by `nice`).

Where the system does not let us, all goes on as it was.
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from holdfast.system import logs
from holdfast.system.tasks import WAITED, start_thread

# By how much the thread and the process that load a version lower their priority (`nice`): they
# take what the requests leave over. The thread not by much: it holds Python's lock now and then,
# and whoever waits for that lock waits for the thread to be given a core. Nor the thread of Envoy
# that is told what to do: it checks the replicas too.
LOADING_NICE: Final = 5
TRIAL_NICE: Final = 10
# By how much those lower their priority that only look after things: a controller, and what a
# gateway watches with. Not by much: a rollback waits for them.
GIVE_WAY_NICE: Final = 3
# The last one that there is.
NICE_MAX: Final = 19
# The system changes the priority of a session ten times a second at most, of all that there are.
AUTOGROUP_AGAIN_S: Final = 0.25
# The slice of time that they ask the system for: longer than its own, which have 3 ms at most. So
# whoever answers interrupts them at once. Not much longer: where others compute all the time, they
# would be interrupted less often.
LOADING_SLICE_S: Final = 0.005

log = logs.get(__name__)

AUTOGROUP: Final = Path("/proc/self/autogroup")
# The number of `sched_setattr`, which glibc has only since 2.41.
_CALLS: Final = {"x86_64": 314, "aarch64": 274}
# struct sched_attr: size, policy, flags, nice, priority, runtime, deadline, period.
_ATTRIBUTES: Final = struct.Struct("=IIQiIQQQ")


def give_way() -> None:
    """The calling thread, and whatever it starts from now on: call it before all others. The
    session too if it is its own: not one that it shares with those who have started it."""
    _lower_priority(GIVE_WAY_NICE)
    if os.getsid(0) == os.getpid():
        _set_session(GIVE_WAY_NICE)


def lower_own_priority() -> None:
    """The calling thread, and whatever it starts from now on; the rest of its process stays."""
    _lower_priority(LOADING_NICE)


def lower_first_thread(pid: int) -> None:
    """The first thread of another process, by so much behind the foremost of its others, which stay
    where they are. What it starts from now on stands where it does: call it when those threads are
    there that answer. Whoever calls it again changes nothing."""
    try:
        others = [int(task.name) for task in Path(f"/proc/{pid}/task").iterdir()]
        others.remove(pid)
        foremost = min(os.getpriority(os.PRIO_PROCESS, thread) for thread in others)
        nice = min(foremost + LOADING_NICE, NICE_MAX)
        os.setpriority(os.PRIO_PROCESS, pid, nice)
    except (OSError, ValueError) as error:  # it is gone, has one thread only, or is not ours
        log.info("a process stays where it is", pid=pid, reason=str(error))
        return
    _set_slice(nice, pid)


class OwnSession:
    """The calling process in a session of its own, with all that it starts. Call it in the main
    thread of a process that has no other, and leave it the alarm (`SIGALRM`)."""

    def __init__(self) -> None:
        os.setsid()
        self._usual = os.getpriority(os.PRIO_PROCESS, 0)
        # What cannot be taken back must not be much.
        self._nice = TRIAL_NICE if may_return() else LOADING_NICE
        self._of_session = 0
        self._what, self._spent_s = "", 0.0
        _set_slice(self._usual)
        # For good: an alarm that comes late must find it.
        signal.signal(signal.SIGALRM, lambda *_: self._return())

    @contextmanager
    def patiently(self, what: str, most_s: float) -> Iterator[None]:
        """Within, the whole session has a lower priority, but not for longer than `most_s` in all
        that is done for the same thing, one after the other: on a machine that is busy for long
        it would not come to an end."""
        if what != self._what:
            self._what, self._spent_s = what, 0.0
        began_s = time.monotonic()
        if self._spent_s < most_s:
            self._set(self._usual + self._nice, self._nice)
            signal.setitimer(signal.ITIMER_REAL, most_s - self._spent_s)
        else:
            self._return()
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            self._spent_s += time.monotonic() - began_s

    def _return(self) -> None:
        if not self._set(self._usual, 0):
            signal.setitimer(signal.ITIMER_REAL, AUTOGROUP_AGAIN_S)

    def _set(self, nice: int, of_session: int) -> bool:
        """False: it may be tried again. Nothing is logged: an alarm may come at any moment."""
        with suppress(OSError):  # then it stays
            os.setpriority(os.PRIO_PGRP, 0, min(nice, NICE_MAX))  # every thread of every process
        # The system changes this only so often: not for nothing.
        if of_session != self._of_session and _set_session(of_session):
            self._of_session = of_session
        return of_session == self._of_session


def may_return() -> bool:
    """Whether a thread that has lowered its priority may raise it again: that takes a privilege."""
    found: list[bool] = []

    def tries() -> None:
        before = os.getpriority(os.PRIO_PROCESS, 0)
        try:
            os.setpriority(os.PRIO_PROCESS, 0, min(before + 1, NICE_MAX))
            os.setpriority(os.PRIO_PROCESS, 0, before)
        except OSError:
            return
        found.append(True)

    # A thread of its own takes what it has lost with it.
    start_thread(tries, "priority", WAITED).result()
    return bool(found)


# --- private --------------------------------------------------------------------------------------


def _lower_priority(by: int) -> None:
    # Of this thread alone: for Linux a thread is a process of its own.
    nice = min(os.getpriority(os.PRIO_PROCESS, 0) + by, NICE_MAX)
    try:
        os.setpriority(os.PRIO_PROCESS, 0, nice)
    except OSError as error:
        log.warning("nobody goes before others here", reason=str(error))
        return
    _set_slice(nice)


def _set_slice(nice: int, thread: int = 0) -> None:
    """Of this thread, which has this priority; 0: the calling one."""
    call = _CALLS.get(platform.machine())
    if call is None:
        return
    wanted = (_ATTRIBUTES.size, os.SCHED_OTHER, 0, nice, 0, round(LOADING_SLICE_S * 1e9), 0, 0)
    library = ctypes.CDLL(None, use_errno=True)
    if library.syscall(ctypes.c_long(call), thread, _ATTRIBUTES.pack(*wanted), 0):
        log.info("a low priority only", reason=os.strerror(ctypes.get_errno()))


def _set_session(nice: int) -> bool:
    """Of all in the session of this process, together. False: it may be tried again."""
    try:
        AUTOGROUP.write_text(str(nice))
    except BlockingIOError:
        return False
    except OSError:
        return True  # there is no such thing here, or it may not be changed
    return True
