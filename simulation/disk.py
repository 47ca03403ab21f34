"""A disk with an agent's journal on it. What was synced stays; a write that was under way is torn.

The bytes are those of the real journal, and are read by its own code. They are made only when
somebody reads them: most journals are never read.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Final

from holdfast.agent import journal
from holdfast.agent.events import Entry

_PATH: Final = Path("journal")
_SALT: Final = bytes(8)


class Disk:
    """Batches of entries that are durable, in order, and perhaps a torn one after them."""

    def __init__(self) -> None:
        self.batches: list[Sequence[Entry]] = []
        self._torn: tuple[Sequence[Entry], float] | None = None

    def append(self, entries: Sequence[Entry]) -> None:
        """Written and synced."""
        self.batches.append(entries)

    def tear(self, entries: Sequence[Entry], random: Random) -> None:
        """The machine or the writer died while it wrote: some of the bytes are there, or all."""
        self._torn = (entries, random.choice((0.0, 1.0, random.random())))

    def recovered(self) -> list[Entry]:
        """What a restarted agent reads. What is torn is cut off for good."""
        raw = journal.written(self.batches, _SALT)
        if self._torn is not None:
            entries, share = self._torn
            whole = journal.written([*self.batches, entries], _SALT)
            raw = whole[: len(raw) + int((len(whole) - len(raw)) * share)]
            self._torn = None
        found = journal.recovered(_PATH, raw).entries
        self.batches = [found] if found else []
        return found
