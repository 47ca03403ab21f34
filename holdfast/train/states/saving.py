"""Shares of checkpoints, copied aside at a step boundary and written by a thread.

The copy is the only stall. A store that is full or away is tried again while training goes on; an
attempt that a newer one has replaced is given up.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

from holdfast.storage import Blobs, Part, put_part
from holdfast.train.states.sharing import share_buffers
from holdfast.train.states.state import State
from holdfast.wire import logs
from holdfast.wire.backoff import Backoff
from holdfast.wire.errors import HoldfastError
from holdfast.wire.limits import SAVE_AGAIN_S, SAVE_AGAIN_S_MAX
from holdfast.wire.tasks import WAITED, OwnedThread, start_thread, unexpected

# How far the thread that writes a share steps back behind the training (as `nice` counts). Not
# further: the training waits for it where both need Python's one lock.
SAVE_NICE: Final = 5
# Errors of a store that are none of ours are waited out so often; then they are a bug, and the
# worker that cannot save says so and ends.
SAVE_SURPRISES_MAX: Final = 5

log = logs.get(__name__)
Done = Callable[[int, tuple[Part, ...]], None]


class Saver:
    """Writes one share at a time. In its thread `done` is called with an attempt and its parts when
    they are durable, and `free` when it can take the next."""

    def __init__(self, blobs: Blobs, done: Done, free: Callable[[], None]) -> None:
        self._blobs = blobs
        self._done = done
        self._free = free
        self._room = bytearray()  # kept: fresh memory costs more than the copy
        self._thread: OwnedThread | None = None
        self._unwanted = threading.Event()
        self._failure: BaseException | None = None
        self.busy = False
        self.attempt = 0  # the last one that was taken

    def take(self, attempt: int, share: int, shares: int, state: State) -> float:
        """Copy this share of the state aside, and begin to write it; how long that took, in s. Not
        while it is busy. `BugError`: writing the one before it ended unexpectedly."""
        assert not self.busy, "a saver writes one share at a time"
        if self._failure is not None:
            raise unexpected("the saving of a checkpoint", self._failure)
        begun_s = time.perf_counter()
        parts = list(share_buffers(state, share, shares))
        sizes = [sum(view.nbytes for view in part) for part in parts]
        if len(self._room) < sum(sizes):
            self._room = bytearray(sum(sizes))
        room, at, copies = memoryview(self._room), 0, []
        for part, size in zip(parts, sizes, strict=True):
            copies.append(room[at : at + size])
            for view in part:
                room[at : at + view.nbytes] = view
                at += view.nbytes
        self.attempt = attempt
        self._unwanted = threading.Event()
        write = partial(self._write, attempt, copies, self._unwanted)
        self.busy = True
        stall_s = time.perf_counter() - begun_s
        self._thread = start_thread(write, "holdfast-save", WAITED)  # by the next `take`
        return stall_s

    def drop(self) -> None:
        """Nobody wants any more what is being written: do not try again."""
        self._unwanted.set()

    def close(self, wait_s: float) -> None:
        """Give what is being written so long to become durable."""
        if self._thread is not None:
            self._thread.join(wait_s)
        self.drop()

    def _write(self, attempt: int, copies: list[memoryview], unwanted: threading.Event) -> None:
        try:
            _step_back()
            parts = self._put(attempt, copies, unwanted)
            if parts is not None:
                self._done(attempt, parts)
        except BaseException as error:
            log.exception("a share of a checkpoint is lost", attempt=attempt)
            self._failure = error
        finally:
            self.busy = False  # only now: whoever sees it may rely on `done`
            self._free()

    def _put(
        self, attempt: int, copies: list[memoryview], unwanted: threading.Event
    ) -> tuple[Part, ...] | None:
        done: list[Part] = []
        again, surprises = Backoff(SAVE_AGAIN_S, SAVE_AGAIN_S_MAX), 0
        while len(done) < len(copies):
            if unwanted.is_set():
                return None
            try:
                done.append(put_part(self._blobs, copies[len(done)], still=True))
                again.succeeded()
            except Exception as error:
                if not isinstance(error, HoldfastError):
                    surprises += 1
                    if surprises >= SAVE_SURPRISES_MAX:
                        raise
                words = f"{type(error).__name__}: {error}"
                log.warning("a share of a checkpoint waits", attempt=attempt, reason=words)
                unwanted.wait(again.failed())
        return tuple(done)


def _step_back() -> None:
    """Let the system prefer the training to this thread, where threads have priorities and a
    sandbox does not forbid to lower them: saving matters more."""
    if sys.platform == "linux":
        thread = threading.get_native_id()
        with suppress(OSError):
            now = os.getpriority(os.PRIO_PROCESS, thread)
            os.setpriority(os.PRIO_PROCESS, thread, min(now + SAVE_NICE, 19))
