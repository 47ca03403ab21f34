"""A disk with an agent's journal on it, as the real journal writes and reads it.

What was synced stays. What was written and not synced stays when the agent dies, and is lost with
the machine. A write that was under way when either died is lost, torn, or there as a whole. A disk
that decays has a bit that is another than was written. One that is full takes nothing for a while.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any, Final

from holdfast.agent import journal
from holdfast.agent.ports import NotReplaced
from simulation.kernel import Violation

DAMAGE: Final = "a damaged journal is refused, and never read as something else"

_PATH: Final = Path("agent/journal")
_SALT: Final = bytes(8)
_FULL: Final = "No space left on device"


class Disk:
    """The file of one journal. `writes` is asked before each write: how much of it is written
    (None: all of it), and what then happens to whoever writes."""

    def __init__(self, writes: Callable[[], tuple[float | None, Callable[[], None]]]) -> None:
        self.is_full: Callable[[], bool] = lambda: False
        self._writes = writes
        self._parts: list[bytes] | None = None  # header and batches that are durable
        self._unsynced = b""  # behind them
        self._torn = b""  # the whole of what was being written when the writer died
        self._flipped: float | None = None  # where, as a part of the whole
        self._records: list[dict[str, Any]] = []  # of the first so many parts
        self._decoded = 0

    # --- the file (`ports.JournalFile`) ----------------------------------------------------------

    @property
    def path(self) -> Path:
        return _PATH

    def salt(self) -> bytes:
        return _SALT

    def read(self) -> bytes | None:
        if self._parts is None:
            return None
        raw = b"".join(self._parts) + self._unsynced
        if self._flipped is not None:
            bit = int(self._flipped * len(raw) * 8)
            raw = raw[: bit // 8] + bytes([raw[bit // 8] ^ (1 << bit % 8)]) + raw[bit // 8 + 1 :]
        return raw

    def keep(self, size: int) -> None:
        """As the journal asks for when it was read: what it keeps is what it takes for good."""
        assert self._parts is not None
        parts = [*self._parts, self._torn or self._unsynced]
        synced = len(self._parts)
        raw = self.read()
        self._unsynced = self._torn = b""
        self._flipped = None
        # It is all that was written, or a beginning of it without the last batch.
        for count in range(len(parts), max(0, synced - 2), -1):
            good = b"".join(parts[:count])
            if size == len(good):
                if raw is None or raw[:size] != good:
                    break
                self._have([part for part in parts[:count] if part])
                self.forgot = count < synced
                return
        raise Violation(DAMAGE, f"of {len(parts)} parts {size} bytes were read")

    def write(self, data: bytes, at: int) -> None:
        assert self._parts is not None and at == sum(map(len, self._parts)), "it appends"
        if self.is_full():
            raise OSError(errno.ENOSPC, _FULL)
        share, then = self._writes()
        if share is not None:
            self._unsynced, self._torn = data[: int(len(data) * share)], data
        else:
            self._unsynced = data
        then()

    def sync(self) -> None:
        assert self._parts is not None
        self._parts.append(self._unsynced)
        self._unsynced = b""

    def replace(self, data: bytes) -> None:
        if self.is_full():
            raise NotReplaced(OSError(errno.ENOSPC, _FULL))
        header = journal.HEADER_BYTES
        self._have([part for part in (data[:header], data[header:]) if part])

    def close(self) -> None:
        pass

    # --- the world's side ------------------------------------------------------------------------

    forgot = False  # the last recovery lacks something that had been durable

    def lose_power(self) -> None:
        """What was not synced is gone, unless it was being written just then."""
        if not self._torn:
            self._unsynced = b""

    def flip(self, random: Random) -> None:
        """One bit, somewhere, is not what was written."""
        if self._parts is not None:
            self._flipped = random.random()

    def flip_last(self, where: float) -> None:
        """... of the last batch: `where` in it, as a part of the whole."""
        if self._parts is not None:
            before, last = sum(map(len, self._parts[:-1])), len(self._parts[-1])
            self._flipped = (before + where * last) / (before + last)

    def records(self) -> list[dict[str, Any]]:
        """The entries that are durable, as they are spelled."""
        parts = self._parts or []
        for part in parts[max(1, self._decoded) :]:
            self._records += json.loads(part[journal.HEAD_BYTES :])
        self._decoded = len(parts)
        return self._records

    def of_kind(self, kind: str) -> Iterator[dict[str, Any]]:
        return (record for record in self.records() if record["kind"] == kind)

    def _have(self, parts: list[bytes]) -> None:
        self._parts = parts
        self._records = []
        self._decoded = 0
