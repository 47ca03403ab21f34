"""What agents write into their journals, read while they write."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from holdfast.agent import journal
from holdfast.agent.events import Accepted, Entry, TermSeen
from holdfast.wire.errors import Corrupt
from tests.proofs.control.events import Event, Obeyed
from tests.proofs.control.processes import Traces


class Journals:
    """Follows the journals of all agents; new entries become events."""

    def __init__(self, traces: Mapping[str, Traces], note: Callable[[Event], None]) -> None:
        self._traces = traces
        self._note = note
        self._at: dict[str, tuple[int, int, int]] = {}  # node -> file, its size, entries read
        self._told: set[tuple[str, str, int, str, int]] = set()

    def look(self) -> None:
        for node, traces in self._traces.items():
            path = traces.folder / journal.NAME
            try:
                stat = path.stat()
                known, size, count = self._at.get(node, (0, 0, 0))
                if (stat.st_ino, stat.st_size) == (known, size):
                    continue
                raw = path.read_bytes()
            except OSError:
                continue
            try:
                entries = journal.recovered(path, raw).entries
            except Corrupt:
                continue  # read while it was being written: the next look has it whole
            same = stat.st_ino == known
            for entry in entries[count if same else 0 :]:
                self._tell(node, entry, again=not same)
            self._at[node] = (stat.st_ino, len(raw), len(entries))

    def _tell(self, node: str, entry: Entry, *, again: bool) -> None:
        """`again`: the file was written anew, so what it holds may have been told before."""
        match entry:
            case TermSeen(term):
                event = Obeyed(time.time(), node, "term", term)
            case Accepted(order, _):
                event = Obeyed(time.time(), node, "accepted", 0, order.job, order.worker)
            case _:
                return
        mark = (node, event.kind, event.term, event.job, event.worker)
        if again and mark in self._told:
            return
        self._told.add(mark)
        self._note(event)
