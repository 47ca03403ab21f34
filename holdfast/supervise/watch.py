"""In every process that is kept: a thread that starts the supervisor again when that has died.

It waits for the end of exactly that process, so it costs nothing while all is well. Of several that
notice at once the one that gets the lock starts the next supervisor, and hands the lock on to it.
"""

from __future__ import annotations

import os
import select
import subprocess
from pathlib import Path
from typing import Final

from holdfast.supervise import records, supervisor, wanted
from holdfast.supervise.records import Registration
from holdfast.system import logs
from holdfast.system.tasks import OwnedThread, start_thread
from holdfast.wire.errors import Cancelled, HoldfastError
from holdfast.wire.limits import KEEP_TURN_S

# After a supervisor was started, or could not be: when one looks again.
KEEP_AGAIN_S: Final = 0.5

log = logs.get(__name__)


def register(folder: Path, kind: str, name: str, *, kept: bool = False) -> Registration:
    """Be the process of this kind and name over the cluster's folder. `Occupied`: a living one is.

    `kept`: one that is to live as long as it is wanted here. It sees to it that the folder has a
    supervisor; `Cancelled`: the supervisor has started it, and meanwhile nobody wants it any more.
    Register before anything that lowers the priority of this process: a supervisor that it starts
    is not to inherit that.
    """
    supervised = bool(os.environ.pop(wanted.SUPERVISED_VARIABLE, ""))
    registration = records.register(folder, kind, name)
    # Who does not want it any more first says so and then looks for records: one of us sees the
    # other.
    if supervised and not wanted.is_wanted(folder, kind, name):
        registration.close()
        raise Cancelled(f"the {kind} {name} of {folder} is not wanted any more")
    if kept:
        watch = Watch(folder)
        registration.before_close(watch.close)
        watch.start()
    return registration


class Watch:
    """Starts a supervisor whenever the folder has none and something is wanted there. Whoever makes
    it closes it, and that waits for its thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stop = os.eventfd(0, os.EFD_CLOEXEC)
        self._children: list[subprocess.Popen[bytes]] = []
        self._thread: OwnedThread | None = None

    def start(self) -> None:
        """A child of this thread has the priority that this process has now."""
        self._thread = start_thread(self._run, "supervisor-watch")

    def close(self) -> None:
        os.eventfd_write(self._stop, 1)
        if self._thread is not None:
            self._thread.join()
        os.close(self._stop)

    # --- private --------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            try:
                pause_s = self._look()
            except (OSError, HoldfastError) as error:
                # No room for a process or on the disk: that passes.
                log.warning("the supervisor cannot be started", reason=str(error))
                pause_s = KEEP_AGAIN_S
            if self._stopped_within(pause_s):
                return

    def _look(self) -> float:
        """Wait while one lives; start one if none does. How long to wait before the next look."""
        self._children = [child for child in self._children if child.poll() is None]
        if not wanted.read(self._folder):
            return KEEP_TURN_S
        lock = records.taken(self._folder, supervisor.KIND, supervisor.NAME)
        if lock is None:
            return self._wait_for_its_end()
        try:
            # Asked now that nobody else can start one: `down` says it first and ends us later.
            if wanted.read(self._folder):
                child = supervisor.start(self._folder, lock)
                self._children.append(child)
                log.info("the supervisor is started again", pid=child.pid)
        finally:
            os.close(lock)
        return KEEP_AGAIN_S

    def _wait_for_its_end(self) -> float:
        known = records.recorded(self._folder, supervisor.KIND, supervisor.NAME)
        handle = known.hold() if known is not None else None
        if handle is None:
            return KEEP_AGAIN_S  # it starts
        try:
            poll = select.poll()
            poll.register(handle, select.POLLIN)
            poll.register(self._stop, select.POLLIN)
            poll.poll()
        finally:
            os.close(handle)
        return 0.0

    def _stopped_within(self, timeout_s: float) -> bool:
        poll = select.poll()
        poll.register(self._stop, select.POLLIN)
        return bool(poll.poll(1000 * timeout_s))
