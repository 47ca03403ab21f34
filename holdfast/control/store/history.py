"""The history of a job: what was decided and why, in pages that go round. The newest stay.

The leader alone writes it, in the transaction of what it decided. A page is written again for
each entry, so it is small; a full one is closed, and the oldest goes when there are too many.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from holdfast.control.decide.commands import (
    BeginCheckpoint,
    Command,
    CommitCheckpoint,
    Decision,
    DrainWorker,
    DropCheckpoint,
    Finish,
    MarkCheckpointUnreadable,
    Order,
    PlaceWorker,
    SetStatus,
    WriteView,
)
from holdfast.control.store.layout import history_path
from holdfast.coordination import Facts, Transaction
from holdfast.wire.history import HistoryEntry, HistoryPage, entries_from, page_from, page_to
from holdfast.wire.limits import REASON_CHARACTERS_MAX

# A job's history: pages of a ring. A page stays small because each entry writes it again.
HISTORY_PAGE_ENTRIES: Final = 64
HISTORY_PAGE_BYTES_MAX: Final = 64 * 1024
HISTORY_PAGES_KEPT: Final = 8

Where = Callable[[str], str]
"""The path of a thing's history, by its name. Services have theirs elsewhere than jobs."""


@dataclass(frozen=True, slots=True)
class HistoryPages:
    """The pages of a job: the numbers that exist, and the last one with its version (-1: none)."""

    pages: tuple[int, ...] = ()
    version: int = -1
    last: HistoryPage = field(default_factory=HistoryPage)

    def committed(self, zxid: int) -> HistoryPages:
        """What was added is written, by the transaction of this zxid."""
        return replace(self, last=self.last.filed(zxid))


def entry_path(job: str, page: int, where: Where = history_path) -> str:
    return f"{where(job)}/{page:010d}"


def read_pages(facts: Facts, job: str, where: Where = history_path) -> HistoryPages:
    """What the next entry is added to."""
    pages = tuple(sorted(int(name) for name in facts.names(where(job))))
    if not pages:
        return HistoryPages()
    path = entry_path(job, pages[-1], where)
    fact = facts.read(path)
    if fact is None:
        return HistoryPages()
    return HistoryPages(pages, fact.version, page_from(path, fact.data, fact.zxid))


def read_history(facts: Facts, job: str) -> list[HistoryEntry]:
    """All that is kept, oldest first."""
    paths = [f"{history_path(job)}/{name}" for name in facts.names(history_path(job))]
    found = facts.read_all(paths)
    return [
        entry for path in paths if path in found for entry in entries_from(path, found[path].data)
    ]


def add(
    transaction: Transaction,
    job: str,
    ring: HistoryPages,
    entries: Sequence[HistoryEntry],
    where: Where = history_path,
) -> HistoryPages:
    """Write the entries as a part of the transaction; the ring after it, which is to be told the
    zxid of that (`committed`)."""
    pages, version, last = list(ring.pages), ring.version, ring.last
    number = pages[-1] if pages else 0
    for entry in entries:
        grown = last.with_entry(entry)
        full = len(grown.entries) > HISTORY_PAGE_ENTRIES
        if last.entries and (full or len(page_to(grown)) > HISTORY_PAGE_BYTES_MAX):
            _write(transaction, entry_path(job, number, where), last, version)
            pages = pages if version >= 0 else [*pages, number]
            number, version, grown = number + 1, -1, last.next_page().with_entry(entry)
        last = grown
    _write(transaction, entry_path(job, number, where), last, version)
    if version < 0:
        pages.append(number)
    for old in pages[:-HISTORY_PAGES_KEPT]:
        transaction.remove(entry_path(job, old, where))
    return HistoryPages(tuple(pages[-HISTORY_PAGES_KEPT:]), version + 1, last)


def _write(transaction: Transaction, path: str, page: HistoryPage, version: int) -> None:
    data = page_to(page)
    if version < 0:
        transaction.create(path, data)
    else:
        transaction.replace(path, data, version)


def entries_of(decisions: Sequence[Decision], at_s: float, term: int) -> list[HistoryEntry]:
    """An entry for each decision; many workers placed, drained or ordered alike share one."""
    found: list[HistoryEntry] = []
    alike = 0
    for at, decision in enumerate(decisions):
        command = decision.command
        before = decisions[at - 1].command if at else None
        if type(before) is type(command) and isinstance(command, PlaceWorker | DrainWorker | Order):
            alike += 1
            first = decisions[at - alike].reason
            found[-1] = HistoryEntry(at_s, term, found[-1].what, _bounded(first, alike))
            continue
        alike = 0
        what, reason = type(command).__name__, _bounded(decision.reason, 0)
        found.append(HistoryEntry(at_s, term, what, reason, data=_data(command)))
    return found


def _data(command: Command) -> dict[str, str | int]:
    """What programs want to know of it, where that is little."""
    match command:
        case SetStatus(status=status):
            return {"phase": status.phase.value}
        case BeginCheckpoint(attempt=attempt) | CommitCheckpoint(attempt=attempt):
            return {"step": attempt.step}
        case Finish(step=step) | DropCheckpoint(step=step) | MarkCheckpointUnreadable(step=step):
            return {"step": step}
        case WriteView(view=view):
            return {"view": view.number}
    return {}


def _bounded(reason: str, alike: int) -> str:
    """The end of a long reason says most."""
    more = f" (and {alike} more like it)" if alike else ""
    return reason[-REASON_CHARACTERS_MAX:] + more
