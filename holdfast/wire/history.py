"""The history of a job or a service, as bytes: pages of entries, oldest first.

It is for people (`holdfast why`), and it is the outbox of `holdfast.events`: what is told there is
read from here. So an entry knows the zxid of the transaction that wrote it, and a page how many
entries were before it: what was trimmed before it was told can be named.

Nobody knows the zxid of a transaction before it is done. So the newest entries of a page have none
(0), and theirs is the zxid of the page's node; whoever writes the page again fills it in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec

from holdfast.wire import documents
from holdfast.wire.documents import FORMAT

ASKED: Final = "Asked"
# What entries of a history were called in versions before.
_FORMER: Final = {
    "Place": "PlaceWorker",
    "Drain": "DrainWorker",
    "Unplace": "UnplaceWorker",
    "CondemnCheckpoint": "MarkCheckpointUnreadable",
}


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """A decision that was carried out: when, in which term, what, and why. `data`: what programs
    want to know of it beside the words. Where it is filed (`zxid`) is no part of what it says."""

    at_s: float
    term: int
    what: str
    reason: str
    zxid: int = field(default=0, compare=False)
    data: Mapping[str, str | int] = field(default_factory=dict, compare=False)


@dataclass(frozen=True, slots=True)
class HistoryPage:
    """Entries, how many were before them in the whole history, and the zxid of the last of those
    (0: that of the first entry here)."""

    entries: tuple[HistoryEntry, ...] = ()
    before: int = 0
    before_zxid: int = 0

    def filed(self, zxid: int) -> HistoryPage:
        """Read from, or just written to, a node whose data are of this zxid. A zxid that is
        greater was another plane's: what the tree was copied from."""
        found, last = [], zxid
        for entry in reversed(self.entries):
            last = entry.zxid if 0 < entry.zxid <= last else last
            found.append(entry if entry.zxid == last else replace(entry, zxid=last))
        before = min(self.before_zxid or last, last) if self.before else 0
        return HistoryPage(tuple(reversed(found)), self.before, before)

    def last_kept(self, count: int) -> HistoryPage:
        """Only the newest entries of a page that was filed."""
        gone = max(0, len(self.entries) - count)
        if not gone:
            return self
        last = self.entries[gone - 1].zxid
        return HistoryPage(self.entries[gone:], self.before + gone, last)

    def newer_than(self, zxid: int) -> HistoryPage:
        """Only what was written after it, of a page that was filed."""
        return self.last_kept(sum(entry.zxid > zxid for entry in self.entries))

    def with_entry(self, entry: HistoryEntry) -> HistoryPage:
        return replace(self, entries=(*self.entries, entry))

    def next_page(self) -> HistoryPage:
        """The empty one that follows it."""
        last = self.entries[-1].zxid if self.entries else self.before_zxid
        return HistoryPage((), self.before + len(self.entries), last)


# A row has the values in the order of its class; what a newer version has added at its end is
# passed over, and what an older one has not written has its default.


class _EntryRow(msgspec.Struct, array_like=True):
    at_s: float
    term: int
    what: str
    reason: str
    zxid: int = 0
    data: dict[str, str | int] = {}


class _AuditRow(msgspec.Struct, array_like=True):
    at_s: float
    reason: str
    zxid: int = 0


class _EntriesPage(msgspec.Struct):
    entries: list[_EntryRow]
    before: tuple[int, int] = (0, 0)


class _AuditPage(msgspec.Struct):
    entries: list[_AuditRow]
    before: tuple[int, int] = (0, 0)


def page_to(page: HistoryPage) -> bytes:
    rows = [
        [entry.at_s, entry.term, entry.what, entry.reason, entry.zxid, dict(entry.data)]
        for entry in page.entries
    ]
    return documents.encoded(_document(page, rows))


def page_from(path: str, data: bytes, zxid: int = 0) -> HistoryPage:
    """The page that lies there; `zxid`: of its node, where that matters."""
    found = documents.from_bytes(path, _EntriesPage, data)
    entries = tuple(
        HistoryEntry(
            row.at_s, row.term, _FORMER.get(row.what, row.what), row.reason, row.zxid, row.data
        )
        for row in found.entries
    )
    page = HistoryPage(entries, *found.before)
    return page.filed(zxid) if zxid else page


def entries_from(path: str, data: bytes) -> tuple[HistoryEntry, ...]:
    return page_from(path, data).entries


def audit_to(page: HistoryPage) -> Any:
    """What users asked: they have no term, and their words are all that is kept."""
    return _document(page, [[entry.at_s, entry.reason, entry.zxid] for entry in page.entries])


def audit_from(path: str, plain: Any, zxid: int = 0) -> HistoryPage:
    found = documents.from_document(path, _AuditPage, plain)
    entries = tuple(HistoryEntry(row.at_s, 0, ASKED, row.reason, row.zxid) for row in found.entries)
    page = HistoryPage(entries, *found.before)
    return page.filed(zxid) if zxid else page


def _document(page: HistoryPage, rows: Iterable[list[Any]]) -> dict[str, Any]:
    plain: dict[str, Any] = {"format": FORMAT, "entries": list(rows)}
    if page.before:
        plain["before"] = [page.before, page.before_zxid]
    return plain
