"""The history of a job: what was decided and why, in pages that go round. The newest stay.

The leader alone writes it, in the transaction of what it decided. A page is written again for
each entry, so it is small; a full one is closed, and the oldest goes when there are too many.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from holdfast.control.decide.commands import Decision, Drain, Order, Place
from holdfast.control.store import codec
from holdfast.control.store.codec import Entry
from holdfast.control.store.filing import history_path
from holdfast.coordination import Facts, Transaction
from holdfast.wire.limits import REASON_CHARACTERS_MAX

# A job's history: pages of a ring. A page stays small because each entry writes it again.
HISTORY_PAGE_ENTRIES: Final = 64
HISTORY_PAGE_BYTES_MAX: Final = 64 * 1024
HISTORY_PAGES_KEPT: Final = 8

Where = Callable[[str], str]
"""The path of a thing's history, by its name. Services have theirs elsewhere than jobs."""


@dataclass(frozen=True, slots=True)
class Ring:
    """The pages of a job: the numbers that exist, and the last one with its version (-1: none)."""

    pages: tuple[int, ...] = ()
    version: int = -1
    last: tuple[Entry, ...] = ()


def entry_path(job: str, page: int, where: Where = history_path) -> str:
    return f"{where(job)}/{page:010d}"


def read_ring(facts: Facts, job: str, where: Where = history_path) -> Ring:
    """What the next entry is added to."""
    pages = tuple(sorted(int(name) for name in facts.names(where(job))))
    if not pages:
        return Ring()
    path = entry_path(job, pages[-1], where)
    fact = facts.read(path)
    if fact is None:
        return Ring()
    return Ring(pages, fact.version, codec.entries_from(path, fact.data))


def read_history(facts: Facts, job: str) -> list[Entry]:
    """All that is kept, oldest first."""
    paths = [f"{history_path(job)}/{name}" for name in facts.names(history_path(job))]
    found = facts.read_all(paths)
    return [
        entry
        for path in paths
        if path in found
        for entry in codec.entries_from(path, found[path].data)
    ]


def add(
    transaction: Transaction,
    job: str,
    ring: Ring,
    entries: Sequence[Entry],
    where: Where = history_path,
) -> Ring:
    """Write the entries as a part of the transaction; the ring after it."""
    pages, version, last = list(ring.pages), ring.version, list(ring.last)
    number = pages[-1] if pages else 0
    for entry in entries:
        grown = [*last, entry]
        full = len(grown) > HISTORY_PAGE_ENTRIES
        if last and (full or len(codec.entries_to(grown)) > HISTORY_PAGE_BYTES_MAX):
            _write(transaction, entry_path(job, number, where), last, version)
            pages = pages if version >= 0 else [*pages, number]
            number, version, grown = number + 1, -1, [entry]
        last = grown
    _write(transaction, entry_path(job, number, where), last, version)
    if version < 0:
        pages.append(number)
    for old in pages[:-HISTORY_PAGES_KEPT]:
        transaction.remove(entry_path(job, old, where))
    return Ring(tuple(pages[-HISTORY_PAGES_KEPT:]), version + 1, tuple(last))


def _write(transaction: Transaction, path: str, entries: list[Entry], version: int) -> None:
    data = codec.entries_to(entries)
    if version < 0:
        transaction.create(path, data)
    else:
        transaction.replace(path, data, version)


def entries_of(decisions: Sequence[Decision], at_s: float, term: int) -> list[Entry]:
    """An entry for each decision; many workers placed, drained or ordered alike share one."""
    found: list[Entry] = []
    alike = 0
    for at, decision in enumerate(decisions):
        command = decision.command
        before = decisions[at - 1].command if at else None
        if type(before) is type(command) and isinstance(command, Place | Drain | Order):
            alike += 1
            first = decisions[at - alike].reason
            found[-1] = Entry(at_s, term, found[-1].what, _bounded(first, alike))
            continue
        alike = 0
        found.append(Entry(at_s, term, type(command).__name__, _bounded(decision.reason, 0)))
    return found


def _bounded(reason: str, alike: int) -> str:
    """The end of a long reason says most."""
    more = f" (and {alike} more like it)" if alike else ""
    return reason[-REASON_CHARACTERS_MAX:] + more
