"""What users asked of a job, in words: for its history.

Users are not leaders, so they do not write the history, which is fenced. Their words have a node
of their own beside it. Each is written in the transaction of the act itself: an act without its
word, or a word without its act, is never there. Two users at once are put in order by the node's
version; the last `ASKED_KEPT` words stay.
"""

from __future__ import annotations

from typing import Final

from holdfast.control.store import codec, filing
from holdfast.control.store.codec import Entry
from holdfast.coordination import Facts, Transaction, stamps
from holdfast.coordination.stamps import EMPTY, Stamped
from holdfast.wire.limits import ASKED_CHARACTERS_MAX, ASKED_KEPT

WHAT: Final = "Asked"


class Asked:
    """The words of all users, by job. `who` is what they are called in them."""

    def __init__(self, facts: Facts, who: str = "its user") -> None:
        self._facts = facts
        self._who = who

    def note_in(
        self, transaction: Transaction, job: str, text: str, at_s: float, mark: str
    ) -> None:
        """Add a word to the transaction of an act. `mark` is new: by it `has` finds it again."""
        path = filing.asked_path(job)
        fact = self._facts.read(path, fresh=True)
        before = stamps.decoded(path, fact.data) if fact else EMPTY
        entry = Entry(at_s, 0, WHAT, f"{self._who} asked: {text}"[:ASKED_CHARACTERS_MAX])
        entries = [*_entries(path, before), entry][-ASKED_KEPT:]
        data = before.written(codec.asked_to(entries), mark).encoded(path)
        if fact is None:
            transaction.create(path, data)
        else:
            transaction.replace(path, data, fact.version)

    def has(self, job: str, mark: str) -> bool:
        """Whether the act with this mark was done; for a lost reply, so soon after it."""
        path = filing.asked_path(job)
        fact = self._facts.read(path, fresh=True)
        return fact is not None and mark in stamps.decoded(path, fact.data).stamps

    def read(self, job: str) -> list[Entry]:
        """Oldest first."""
        path = filing.asked_path(job)
        fact = self._facts.read(path)
        return _entries(path, stamps.decoded(path, fact.data)) if fact else []


def _entries(path: str, stamped: Stamped) -> list[Entry]:
    return [] if stamped.value is None else list(codec.asked_from(path, stamped.value))
