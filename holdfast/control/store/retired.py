"""Numbers of workers that were used under a name, when its job is removed and the name used again.

A worker's number is used once: agents remember those that have ended, and never start one again.
So a new job under an old name goes on counting where the old one ended. Only the names removed
last are kept; agents forget older numbers too.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

from holdfast.control.store.layout import ROOT
from holdfast.coordination import ABSENT, Config, Session, Transaction
from holdfast.wire.errors import Conflict

# Names of removed jobs whose workers' numbers are remembered, in one node.
RETIRED_NAMES_MAX: Final = 5_000

RETIRED: Final = f"{ROOT}/retired"


class Retired:
    """The next number of each name that was removed."""

    def __init__(self, session: Session) -> None:
        self._config = Config(session, RETIRED)

    def first(self, name: str) -> tuple[int, int]:
        """The first number that a new job of this name may use, and the version of that."""
        value, version = self._config.get()
        while version == ABSENT:
            # Made now, so that its version can be checked.
            with suppress(Conflict):
                self._config.put([], expect=ABSENT)
            value, version = self._config.get()
        return dict(value).get(name, 1), version

    def begun(self, name: str) -> int:
        """The first number of the job that has this name now: lower ones were of others."""
        return int(dict(self._config.get().value or ()).get(name, 1))

    def check_in(self, transaction: Transaction, version: int) -> None:
        """The transaction holds only if nobody has retired a name since that version."""
        transaction.check(RETIRED, version)

    def moved(self, version: int) -> bool:
        return self._config.get().version != version

    def retire(self, name: str, next_worker: int) -> None:
        """Before the job is removed: remember where its numbers end."""

        def change(value: Any) -> Any:
            rows = [[known, number] for known, number in value or () if known != name]
            return [*rows, [name, next_worker]][-RETIRED_NAMES_MAX:]

        self._config.update(change)
