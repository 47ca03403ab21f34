"""What clients asked of registers and were told, with the time of both."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from typing import Literal, NamedTuple

ANY_VERSION = -1
NEVER = math.inf

Kind = Literal["read", "write"]
Outcome = Literal["ok", "refused", "unknown"]


class Operation(NamedTuple):
    """One operation on one register.

    A write carries the `expected` version (`ANY_VERSION`: whatever it is), and `value` is what it
    writes; every write of a history has a value of its own. For a read `value` is what it got.
    `position` is the zxid in the reply's header: the transaction itself for a write, also for one
    that was refused; the last transaction that the server had applied for a read. `mzxid` and
    `version` are the register's after a write, or as read. An operation whose outcome is not known
    returned `NEVER`, and has no position.
    """

    client: int
    key: str
    kind: Kind
    value: bytes
    expected: int
    invoked: float
    returned: float
    outcome: Outcome
    position: int = 0
    mzxid: int = 0
    version: int = 0

    def __str__(self) -> str:
        what = f"client {self.client} {self.kind} {self.key} {self.value.decode()}"
        if self.kind == "write" and self.expected != ANY_VERSION:
            what += f" if version {self.expected}"
        end = "" if self.returned is NEVER else f", {self.returned:.0f}"
        return (
            f"{what}: {self.outcome}, at zxid {self.position}, mzxid {self.mzxid}, "
            f"version {self.version}, [{self.invoked:.0f}{end}] ns"
        )


def by_key(history: Iterable[Operation]) -> dict[str, list[Operation]]:
    """Each register's own history. Linearizability is local: all hold if and only if each does."""
    keys: dict[str, list[Operation]] = defaultdict(list)
    for operation in history:
        keys[operation.key].append(operation)
    return dict(keys)
