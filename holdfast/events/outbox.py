"""From the histories of the coordination plane to events: in order, none left out. Pure.

    told = events_between(sources, after=position, upto=zxid)

What is known of a source is a few pages of its newest entries. Everything up to `upto` is known of
every source: so what lies between the position and `upto` is told now, in the order of zxids, and
the position becomes `upto`. Told again from an older position, or by another reader, every event
has the id that it had before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from holdfast.events.records import CLUSTER, GAP, Event, kind_of
from holdfast.wire.history import HistoryEntry, HistoryPage


@dataclass(frozen=True, slots=True)
class HistorySource:
    """What is kept of one history: pages that were filed (`HistoryPage.filed`), oldest first. A
    history is `part` of what is known of its subject: what was decided, or what was asked."""

    of: str
    name: str
    part: str
    pages: tuple[HistoryPage, ...]

    @property
    def key(self) -> str:
        return f"{self.of}/{self.name}/{self.part}"


def events_between(sources: Iterable[HistorySource], after: int, upto: int) -> list[Event]:
    """What was written after one zxid, up to another, and what is missing of it.

    Sources may be newer than `upto`, so what was written before it may be gone already: that gap is
    told now, and again with what follows it, under one id.
    """
    if upto <= after:
        return []
    found = [event for source in sources for event in _events(source, after, upto)]
    found.sort(key=_order)
    return found


def together(events: list[Event], upto: int, count: int) -> tuple[list[Event], int]:
    """The first of these, about so many, and the zxid up to which they are all that there is. What
    one transaction has written stays together."""
    if len(events) <= count:
        return events, upto
    last = events[count].zxid - 1
    last = max(last, events[0].zxid)
    return [event for event in events if event.zxid <= last], last


def gap_of_plane(position: int, upto: int) -> Event:
    """The plane was replaced by another, whose zxids begin anew: what its histories have is told,
    and nobody knows what else there was."""
    event = f"{upto:x}-{CLUSTER}/plane/all-gap"
    return Event(
        id=event,
        zxid=0,
        kind=GAP,
        of=CLUSTER,
        name="plane",
        what="Gap",
        reason="the coordination plane is another one: what it has is told anew",
        data={"after": position, "upto": upto},
    )


def _order(event: Event) -> tuple[int, bool, str, str, int]:
    return (event.zxid, event.kind != GAP, event.of, event.name, event.number)


def _events(source: HistorySource, after: int, upto: int) -> Iterator[Event]:
    expected = 0  # the number of the next entry
    for page in source.pages:
        if page.before > expected and after < page.before_zxid:
            gap = f"{page.before_zxid:x}-{source.key}-gap"
            most = page.before - expected
            yield _gap(gap, source.of, source.name, after, (page.before_zxid, upto), most)
        expected = page.before + len(page.entries)
        for number, entry in enumerate(page.entries, page.before):
            if source.of == CLUSTER and after < int(entry.data.get("last", 0)):
                yield _gap_of_removed(entry, after, upto)
            if after < entry.zxid <= upto:
                yield _event(source, entry, number)


def _event(source: HistorySource, entry: HistoryEntry, number: int) -> Event:
    of, name, data = source.of, source.name, dict(entry.data)
    if of == CLUSTER:  # it is of what was removed
        of, name = str(data.pop("of", of)), str(data.pop("name", name))
        data.pop("last", None)
    return Event(
        id=f"{entry.zxid:x}-{source.key}-{number}",
        zxid=entry.zxid,
        kind=kind_of(source.of, entry),
        of=of,
        name=name,
        at_s=entry.at_s,
        term=entry.term,
        number=number,
        what=entry.what,
        reason=entry.reason,
        data=data,
    )


def _gap_of_removed(entry: HistoryEntry, after: int, upto: int) -> Event:
    """It had a history, whose end may not have been told."""
    of, name = str(entry.data.get("of", "")), str(entry.data.get("name", ""))
    last = int(entry.data.get("last", 0))
    return _gap(f"{last:x}-{of}/{name}/all-gap", of, name, after, (last, upto))


def _gap(
    event: str, of: str, name: str, after: int, bounds: tuple[int, int], most: int = 0
) -> Event:
    last, upto = bounds
    many = f"at most {most}" if most else "some"
    return Event(
        id=event,
        zxid=min(last, upto),
        kind=GAP,
        of=of,
        name=name,
        what="Gap",
        reason=f"{many} entries of its history were trimmed before they could be told",
        data={"after": after, "upto": last, **({"most": most} if most else {})},
    )
