"""What users asked of a job, in words: for its history.

Users are not leaders, so they do not write the history, which is fenced. Their words have a node
of their own beside it. Each is written in the transaction of the act itself: an act without its
word, or a word without its act, is never there. Two users at once are put in order by the node's
version; the last `ASKED_KEPT` words stay.
"""

from __future__ import annotations

from holdfast.control.store import layout
from holdfast.coordination import Facts, Transaction, stamps
from holdfast.coordination.stamps import EMPTY, Stamped
from holdfast.wire.history import ASKED, HistoryEntry, HistoryPage, audit_from, audit_to
from holdfast.wire.limits import ASKED_CHARACTERS_MAX, ASKED_KEPT


class AuditLog:
    """The words of all users, by job. `who` is what they are called in them."""

    def __init__(self, facts: Facts, who: str = "its user") -> None:
        self._facts = facts
        self._who = who

    def note_in(
        self, transaction: Transaction, job: str, text: str, at_s: float, mark: str
    ) -> None:
        """Add a word to the transaction of an act. `mark` is new: by it `has` finds it again."""
        path = layout.audit_path(job)
        fact = self._facts.read(path, fresh=True)
        before = stamps.decoded(path, fact.data) if fact else EMPTY
        entry = HistoryEntry(at_s, 0, ASKED, f"{self._who} asked: {text}"[:ASKED_CHARACTERS_MAX])
        page = _page(path, before, fact.zxid if fact else 0).with_entry(entry)
        data = before.written(audit_to(page.last_kept(ASKED_KEPT)), mark).encoded(path)
        if fact is None:
            transaction.create(path, data)
        else:
            transaction.replace(path, data, fact.version)

    def has(self, job: str, mark: str) -> bool:
        """Whether the act with this mark was done; for a lost reply, so soon after it."""
        path = layout.audit_path(job)
        fact = self._facts.read(path, fresh=True)
        return fact is not None and mark in stamps.decoded(path, fact.data).stamps

    def read(self, job: str) -> list[HistoryEntry]:
        """Oldest first."""
        path = layout.audit_path(job)
        fact = self._facts.read(path)
        return list(_page(path, stamps.decoded(path, fact.data)).entries) if fact else []


def _page(path: str, stamped: Stamped, zxid: int = 0) -> HistoryPage:
    return HistoryPage() if stamped.value is None else audit_from(path, stamped.value, zxid)
