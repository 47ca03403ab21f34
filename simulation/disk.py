"""A disk with an agent's journal on it.

What was synced stays. A write that was under way when the power failed is lost, torn, or there as a
whole. A disk that decays has a bit that is another than was written. One that is full takes nothing
for a while. The bytes are those of the real journal, and are read by its own code.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from random import Random
from typing import Final

from holdfast.agent import journal
from holdfast.agent.events import Entry
from simulation.kernel import Violation

DAMAGE: Final = "a damaged journal is refused, and never read as something else"

_PATH: Final = Path("journal")
_SALT: Final = bytes(8)


class Disk:
    """Batches of entries that are durable, in order, and perhaps a part of one after them."""

    def __init__(self) -> None:
        self.batches: list[Sequence[Entry]] = []
        self.full_until_s = 0.0
        self.forgot = False  # the last recovery lacks something that had been durable
        self._torn: tuple[Sequence[Entry], float] | None = None
        self._flipped: float | None = None  # where, as a part of the whole

    def append(self, entries: Sequence[Entry]) -> None:
        """Written and synced."""
        self.batches.append(entries)

    def compact(self, entries: Iterable[Entry]) -> None:
        """One batch that gives the same state."""
        self.batches = [tuple(entries)]

    def tear(self, entries: Sequence[Entry], share: float) -> None:
        """The machine or the writer died while it wrote: so much of the bytes is there."""
        self._torn = (entries, share)

    def flip(self, random: Random) -> None:
        """One bit, somewhere, is not what was written."""
        self._flipped = random.random()

    def recovered(self) -> list[Entry]:
        """What a restarted agent reads; what is torn is cut off for good. `Corrupt`: the journal is
        refused. Nobody but we knows what had been written: it is all of that, or a beginning of it
        without the last batch, which is what the journal promises."""
        raw = journal.written(self.batches, _SALT)
        durable = [list(batch) for batch in self.batches]
        if self._torn is not None:
            entries, share = self._torn
            whole = journal.written([*self.batches, entries], _SALT)
            raw = whole[: len(raw) + int((len(whole) - len(raw)) * share)]
            self._torn = None
            durable.append(list(entries))
        if self._flipped is not None:
            bit = int(self._flipped * len(raw) * 8)
            raw = raw[: bit // 8] + bytes([raw[bit // 8] ^ (1 << bit % 8)]) + raw[bit // 8 + 1 :]
            self._flipped = None
        found = journal.recovered(_PATH, raw).entries
        return self._judged(found, durable)

    def _judged(self, found: list[Entry], written: list[list[Entry]]) -> list[Entry]:
        """What was read is a beginning of what was written: all but the last batch at least, or
        two of them if the last one was torn."""
        synced = len(self.batches)
        for count in range(len(written), max(-1, synced - 2), -1):
            if found == [entry for batch in written[:count] for entry in batch]:
                self.batches = list(written[:count])
                self.forgot = count < synced
                return found
        raise Violation(DAMAGE, f"of {len(written)} batches {len(found)} entries were read")
