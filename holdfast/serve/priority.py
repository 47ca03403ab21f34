"""Whoever loads a version lets those who answer go first.

`nice` alone does not do that, for two reasons. Where nobody has set up anything else, Linux shares
the cores among sessions first (`autogroup`), and goes by `nice` only within each of them: what a
replica loads would weigh as much as all of Envoy. And whoever runs may finish his slice of time
before others get the core: some milliseconds, for each process that a request goes through. One
that has asked for a longer slice than others is interrupted at once by each of them that wakes up
(Linux 6.12 and newer; older ones go by `nice`).
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from pathlib import Path
from typing import Final

from holdfast.wire import logs

log = logs.get(__name__)

# The number of `sched_setattr`, which glibc has only since 2.41.
_CALLS: Final = {"x86_64": 314, "aarch64": 274}
# struct sched_attr: size, policy, flags, nice, priority, runtime, deadline, period.
_ATTRIBUTES: Final = struct.Struct("=IIQiIQQQ")


def step_back(nice: int, slice_s: float) -> None:
    """For the calling thread, and whatever it starts from now on. Where the system does not let
    us, all goes on as it was."""
    try:
        # Of this thread alone: for Linux a thread is a process of its own.
        os.setpriority(os.PRIO_PROCESS, 0, nice)
    except OSError as error:
        log.warning("versions are loaded at the priority of requests", reason=str(error))
        return
    call = _CALLS.get(platform.machine())
    if call is None:
        return
    wanted = (_ATTRIBUTES.size, os.SCHED_OTHER, 0, nice, 0, round(slice_s * 1e9), 0, 0)
    library = ctypes.CDLL(None, use_errno=True)
    if library.syscall(ctypes.c_long(call), 0, _ATTRIBUTES.pack(*wanted), 0):
        reason = os.strerror(ctypes.get_errno())
        log.info("versions are loaded at a low priority only", reason=reason)


def step_back_alone(nice: int, slice_s: float) -> None:
    """For the calling process, which nobody else may be waiting for: in a session of its own, of
    which all together have a low priority."""
    os.setsid()
    step_back(nice, slice_s)
    try:
        Path("/proc/self/autogroup").write_text(str(nice))
    except OSError as error:  # there is no such thing here, or it may not be changed
        log.debug("a session has the priority of all", reason=str(error))
