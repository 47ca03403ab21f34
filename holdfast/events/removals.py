"""What was removed with its history: told by a list of its own, since nothing else is left of it.

The list is there once somebody tells events in the cluster; until then nothing is noted. Whoever
removes a job or a service notes it in the same transaction, with the zxid of the last entry of its
history: if that was not told by then, the gap is.
"""

from __future__ import annotations

from typing import Final

from holdfast.coordination import Facts, Transaction
from holdfast.wire.history import HistoryEntry, page_from, page_to
from holdfast.wire.names import EVENTS_PATH

REMOVALS: Final = f"{EVENTS_PATH}/removed"
# What was removed and is remembered: far more than is removed while topics are away for a moment.
REMOVALS_KEPT: Final = 256
REMOVED: Final = "Removed"


def note_removed(
    facts: Facts, transaction: Transaction, of: str, name: str, last: int, at_s: float
) -> None:
    """Note in the transaction of the removal that the history of this ended at `last`. Two at once
    are a `Conflict`: whoever is second looks again."""
    fact = facts.read(REMOVALS, fresh=True)
    if fact is None:
        return
    data: dict[str, str | int] = {"of": of, "name": name, "last": last}
    entry = HistoryEntry(at_s, 0, REMOVED, f"{of} {name} was removed", data=data)
    page = page_from(REMOVALS, fact.data, fact.zxid).with_entry(entry).last_kept(REMOVALS_KEPT)
    transaction.replace(REMOVALS, page_to(page), fact.version)


def last_zxid(facts: Facts, history: str, audit: str) -> int:
    """Of the newest entry of what is kept of something: its pages below `history`, its `audit`."""
    paths = [f"{history}/{name}" for name in facts.names(history)]
    return max((fact.zxid for fact in facts.read_all([*paths, audit]).values()), default=0)
