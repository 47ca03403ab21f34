"""Something that any thread may ring, and that a poll hears."""

from __future__ import annotations

import os
import select
from contextlib import suppress


class Bell:
    """Rung any number of times, it is heard once, until `still` is called."""

    def __init__(self) -> None:
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._closed = False

    def fileno(self) -> int:
        return self._fd

    def ring(self) -> None:
        if not self._closed:
            with suppress(BlockingIOError):  # it rings already, and how
                os.eventfd_write(self._fd, 1)

    def still(self) -> None:
        """Silence it, before one looks at what it was rung for."""
        with suppress(BlockingIOError):
            os.eventfd_read(self._fd)

    def wait(self, at_most_s: float) -> None:
        """Until it is rung, or the time is over; it is still afterwards."""
        select.select([self._fd], [], [], at_most_s)
        self.still()

    def close(self) -> None:
        # Never given back to the system: another thread may be about to ring it.
        self._closed = True
