"""What was known then, by looping over everything: slow and obvious."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Fact:
    """A row of a history."""

    key: tuple[object, ...]
    at_us: int
    arrived_us: int
    writer: int
    sequence: int
    value: int | None
    deleted: bool = False

    @property
    def version(self) -> tuple[int, int, int]:
        return (self.at_us, self.writer, self.sequence)


def known_then(
    facts: Sequence[Fact],
    key: tuple[object, ...],
    at_us: int,
    ttl_us: int | None = None,
    *,
    arrived: bool = False,
) -> Fact | None:
    """The row that an entity is told of; None: there is none."""
    newest: Fact | None = None
    for fact in facts:
        if fact.key != key or fact.at_us > at_us:
            continue
        if arrived and fact.arrived_us > at_us:
            continue
        if newest is None or fact.version > newest.version:
            newest = fact
    if newest is None or newest.deleted:
        return None
    if ttl_us is not None and newest.at_us + ttl_us <= at_us:
        return None
    return newest
