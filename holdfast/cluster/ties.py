"""Ending with one's parent, however that ends.

A tied process gets a pipe as its standard input, whose other end only its parent holds. When the
parent ends, by whatever signal, the kernel closes that end, and the child reads an end of file.
(`PR_SET_PDEATHSIG` would tell of the end of the *thread* that started it, and races with a parent
that dies before it is set.)
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Final

from holdfast.system import logs
from holdfast.system.tasks import start_thread
from holdfast.wire.errors import Cancelled
from holdfast.wire.limits import TIED_END_S

_STDIN: Final = 0

log = logs.get(__name__)


def watch(ended: Callable[[], None], grace_s: float = TIED_END_S) -> None:
    """Call `ended` once, on a thread, when our parent is gone. Then we have `grace_s` to end."""

    def wait() -> None:
        while os.read(_STDIN, 1):
            continue
        log.info("the parent is gone")
        ended()
        time.sleep(grace_s)
        os._exit(Cancelled.exit_code)

    start_thread(wait, "tie", lasts="it ends the process")


class Tie:
    """The parent's side: one pipe for all its children. It holds as long as this process lives, or
    until `cut`."""

    def __init__(self) -> None:
        self.end, self._held = os.pipe()

    def cut(self) -> None:
        """Let all children end now."""
        for handle in (self.end, self._held):
            os.close(handle)
