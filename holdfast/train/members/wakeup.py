"""A wakeup: any thread may set it, and a poll sees that."""

from __future__ import annotations

import os
from contextlib import suppress

from holdfast.system.readable import await_readable


class Wakeup:
    """Set any number of times, it is seen once, until `clear` is called."""

    def __init__(self) -> None:
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._closed = False

    def fileno(self) -> int:
        return self._fd

    def set(self) -> None:
        if not self._closed:
            with suppress(BlockingIOError):  # it is set already
                os.eventfd_write(self._fd, 1)

    def clear(self) -> None:
        """Clear it, before one looks at what it was set for."""
        with suppress(BlockingIOError):
            os.eventfd_read(self._fd)

    def wait(self, at_most_s: float) -> None:
        """Until it is set, or the time is over; it is clear afterwards."""
        await_readable([self._fd], at_most_s)
        self.clear()

    def close(self) -> None:
        # Never given back to the system: another thread may be about to set it.
        self._closed = True
