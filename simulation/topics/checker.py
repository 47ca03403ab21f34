"""Which promises of a broker a history breaks. It looks at what clients know, and at nothing else.

lost        an acknowledged or committed record, its copy, or a group's offset is not there
doubled     a record, or the copy of a record, is there twice; two have one offset
reordered   records of one author, or copies, are not in their order, or not where they were
aborted     a record of an aborted transaction is seen by who reads committed ones
torn        a transaction is there in part
invented    a record is there that nobody sent there
changed     a reader was given what the log does not have at that offset
two owners  a partition has two members of one generation
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from simulation.topics.history import Fate, History, Place, Sent


class Broken(NamedTuple):
    """A promise that was broken, and by what."""

    rule: str
    what: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.what}"


def check(history: History) -> list[Broken]:
    """Everything that is wrong with a history that has come to its end."""
    return list(Checker(history).every())


class Checker:
    """One history, with what is looked up in it."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.sent = {one.value: one for one in history.sent}
        self.offsets: dict[str, tuple[Place, int]] = {}
        for place, records in history.final.items():
            for offset, value in records:
                self.offsets.setdefault(value, (place, offset))

    def every(self) -> Iterator[Broken]:
        yield from self.records()
        yield from self.acknowledged()
        yield from self.transactions()
        yield from self.order()
        yield from self.readers()
        yield from self.copies()
        yield from self.groups()

    def fate(self, one: Sent) -> Fate:
        return self.history.fates.get(one.transaction, Fate.UNKNOWN)

    # --- the log ------------------------------------------------------------------------------

    def records(self) -> Iterator[Broken]:
        times: Counter[str] = Counter()
        for place, records in self.history.final.items():
            last = -1
            for offset, value in records:
                times[value] += 1
                if offset <= last:
                    yield Broken("reordered", f"{place} has offset {offset} after {last}")
                last = offset
                one = self.sent.get(value)
                if one is None or one.place != place:
                    yield Broken(
                        "invented", f"{value} at {offset} of {place}: nobody sent it there"
                    )
        for value, count in times.items():
            if count > 1:
                yield Broken("doubled", f"{value} is there {count} times")

    def acknowledged(self) -> Iterator[Broken]:
        held: dict[tuple[Place, int], str] = {}
        for value, offset in self.history.acknowledged.items():
            one = self.sent[value]
            if offset >= 0:
                other = held.setdefault((one.place, offset), value)
                if other != value:
                    yield Broken(
                        "doubled",
                        f"{other} and {value} were both told offset {offset} of {one.place}",
                    )
            found = self.offsets.get(value)
            if found is None and not one.transaction:
                yield Broken("lost", f"{value} was acknowledged with {offset} of {one.place}")
            elif found is not None and 0 <= offset != found[1]:
                yield Broken("reordered", f"{value} was told offset {offset} and has {found[1]}")

    def transactions(self) -> Iterator[Broken]:
        parts = defaultdict[str, list[Sent]](list)
        for one in self.history.sent:
            if one.transaction:
                parts[one.transaction].append(one)
        for transaction, records in parts.items():
            there = [one.value for one in records if one.value in self.offsets]
            gone = [one.value for one in records if one.value not in self.offsets]
            fate = self.history.fates.get(transaction, Fate.UNKNOWN)
            if fate is Fate.COMMITTED and gone:
                yield Broken("lost", f"{gone[0]} of {transaction}, which was committed")
            elif fate is Fate.ABORTED and there:
                yield Broken("aborted", f"{there[0]} of {transaction} is in the committed log")
            elif fate is Fate.UNKNOWN and there and gone:
                yield Broken("torn", f"{transaction} has {there[0]} and not {gone[0]}")

    def order(self) -> Iterator[Broken]:
        """What one author sent to a partition lies there in the order in which it sent it."""
        last: dict[tuple[str, Place], tuple[int, str]] = {}
        for one in self.history.sent:
            found = self.offsets.get(one.value)
            if found is None:
                continue
            before = last.get((one.author, one.place))
            if before is not None and found[1] < before[0]:
                yield Broken("reordered", f"{one.value} lies before {before[1]}")
            last[one.author, one.place] = found[1], one.value

    # --- readers ------------------------------------------------------------------------------

    def readers(self) -> Iterator[Broken]:
        at = {
            (place, offset): value
            for place, records in self.history.final.items()
            for offset, value in records
        }
        for one in self.history.seen:
            sent = self.sent.get(one.value)
            if sent is not None and self.fate(sent) is Fate.ABORTED:
                yield Broken("aborted", f"{one.reader} saw {one.value} of {sent.transaction}")
            elif at.get((one.place, one.offset)) != one.value:
                held = at.get((one.place, one.offset), "nothing")
                yield Broken(
                    "changed",
                    f"{one.reader} saw {one.value} at {one.offset} of {one.place}, where {held} is",
                )

    def copies(self) -> Iterator[Broken]:
        """Each record of a copied topic has one copy, and copies are in the order of the log."""
        for topic, target in self.history.copied.items():
            made = defaultdict[str, list[str]](list)
            for place, records in self.history.final.items():
                if place.topic == target:
                    for _, value in records:
                        made[self.sent[value].source if value in self.sent else ""].append(value)
            for place, records in self.history.final.items():
                if place.topic == topic:
                    yield from self._copies_of(place, records, made)

    def _copies_of(
        self, place: Place, records: list[tuple[int, str]], made: dict[str, list[str]]
    ) -> Iterator[Broken]:
        last = -1
        for _, value in records:
            copies = made.get(value, [])
            if not copies:
                yield Broken("lost", f"{value} of {place} has no copy")
                continue
            if len(copies) > 1:
                yield Broken("doubled", f"{value} was copied as {' and '.join(copies)}")
            offset = self.offsets[copies[0]][1]
            if offset < last:
                yield Broken("reordered", f"the copy {copies[0]} lies before those made earlier")
            last = offset

    # --- groups -------------------------------------------------------------------------------

    def groups(self) -> Iterator[Broken]:
        owners: dict[tuple[str, int, Place], str] = {}
        for one in self.history.owned:
            for place in one.places:
                other = owners.setdefault((one.group, one.generation, place), one.member)
                if other != one.member:
                    yield Broken(
                        "two owners",
                        f"{place} belongs to {other} and to {one.member} in generation"
                        f" {one.generation} of {one.group}",
                    )
        for (group, place), offset in self.history.kept.items():
            last = self.history.kept_at_last.get((group, place), -1)
            if last < offset:
                yield Broken("lost", f"{group} was told {offset} of {place} and has {last}")
