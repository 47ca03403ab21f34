"""Workers of an agent that is not there: are there any, and ending them.

The next agent adopts them. This is for when there will be none: the cluster is going down.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Final

from holdfast.agent import keeper, processes
from holdfast.agent.events import Key
from holdfast.agent.folders import Folders
from holdfast.system import logs
from holdfast.system.readable import await_readable
from holdfast.wire.limits import KILL_AGAIN_S

_SWEEP_S: Final = 0.02

log = logs.get(__name__)


def living(home: Path) -> list[Key]:
    """Workers of this agent's folder whose shim lives."""
    folders = Folders(home)
    if not folders.workers.is_dir():
        return []
    held = _held(folders)
    for handle in held.values():
        os.close(handle)
    return list(held)


def end_workers(home: Path, notice_s: float) -> int:
    """Ask the workers of this folder to leave, kill them after the notice, and return when nothing
    of them runs; how many there were. The next agent finds how each ended.

    `Occupied`: an agent has the folder; ask that one.
    """
    folders = Folders(home)
    if not folders.workers.is_dir():
        return 0
    lock = folders.take()
    try:
        _end_zygote(home)
        for key in folders.present():
            folders.claim_void(key)  # a shim that comes late starts nothing any more
        held = _held(folders)
        count = len(held)
        for handle in held.values():
            processes.send(handle, signal.SIGTERM)
        _await(held, notice_s)
        for key, handle in held.items():
            log.info("a worker is killed after its notice", worker=str(key))
            # A shim that was itself paused cannot do as it is told.
            processes.send(handle, signal.SIGCONT)
            processes.send(handle, signal.SIGUSR1)
        _await(held, KILL_AGAIN_S)
        for handle in held.values():
            os.close(handle)
        for key in folders.present():
            while processes.kill_marked(folders.worker(key)):
                time.sleep(_SWEEP_S)
        return count
    finally:
        os.close(lock)


def _end_zygote(home: Path) -> None:
    """It holds nothing but memory, and nobody will ask it any more."""
    handle = keeper.zygote_of(home)
    if handle is not None:
        processes.send(handle, signal.SIGKILL)
        await_readable([handle])
        os.close(handle)


def _held(folders: Folders) -> dict[Key, int]:
    """Handles of the shims that live, by worker."""
    found = {}
    for key in folders.present():
        identity = folders.claim(key)
        handle = processes.hold(identity) if identity is not None else None
        if handle is not None:
            found[key] = handle
    return found


def _await(held: dict[Key, int], timeout_s: float) -> None:
    """Wait until these have ended; those that have are closed and taken out."""
    deadline_s = time.monotonic() + timeout_s
    while held:
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            return
        ready = await_readable(held.values(), left_s)
        for key in [key for key, handle in held.items() if handle in ready]:
            os.close(held.pop(key))
