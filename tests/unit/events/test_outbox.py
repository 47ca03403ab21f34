"""From histories to events: over random writers, trims, readers that die, and planes that move."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.control.store import history
from holdfast.coordination.nodes import Op
from holdfast.coordination.transaction import Transaction
from holdfast.events import records
from holdfast.events.outbox import HistorySource, events_between
from holdfast.events.records import CLUSTER, GAP, JOB, MODEL, SERVICE, Event
from holdfast.wire.history import HistoryEntry, HistoryPage, audit_from, audit_to, page_from

NAMES = ("a", "b")
ASKED_KEPT = 3


@dataclass
class World:
    """Nodes with zxids, written by leaders through the real history, and by users."""

    zxid: int = 0
    nodes: dict[str, tuple[bytes, int, int]] = field(default_factory=dict)
    rings: dict[str, history.HistoryPages] = field(default_factory=dict)
    audits: dict[str, tuple[dict[str, object], int]] = field(default_factory=dict)
    written: list[tuple[str, int, str]] = field(default_factory=list)  # source, zxid, reason
    removed: HistoryPage = field(default_factory=HistoryPage)

    def decide(self, job: str, reasons: Sequence[str]) -> None:
        """The leader writes these in one transaction."""
        ring = self.rings.get(job) or self._read_ring(job)
        transaction = Transaction(self._commit)
        entries = [HistoryEntry(float(self.zxid), 1, "PlaceWorker", reason) for reason in reasons]
        ring = history.add(transaction, job, ring, entries)
        self.rings[job] = ring.committed(transaction.commit())
        self.written += [(f"{job}/history", self.zxid, reason) for reason in reasons]

    def ask(self, job: str, reason: str) -> None:
        self.zxid += 1
        plain, zxid = self.audits.get(job, (None, 0))
        page = HistoryPage() if plain is None else audit_from("/", plain, zxid)
        page = page.with_entry(HistoryEntry(0.0, 0, "Asked", reason)).last_kept(ASKED_KEPT)
        self.audits[job] = (audit_to(page), self.zxid)
        self.written.append((f"{job}/audit", self.zxid, reason))

    def remove(self, job: str) -> None:
        pages = self._pages(job)
        if not pages and job not in self.audits:
            return
        lasts = [page.entries[-1].zxid for page in pages] + [self.audits.get(job, (0, 0))[1]]
        self.zxid += 1
        data: dict[str, str | int] = {"of": JOB, "name": job, "last": max(lasts)}
        entry = HistoryEntry(0.0, 0, "Removed", f"{job} was removed", data=data)
        self.removed = self.removed.with_entry(entry).filed(self.zxid)
        for path in [path for path in self.nodes if path.startswith(f"/holdfast/jobs/{job}/")]:
            del self.nodes[path]
        self.rings.pop(job, None)
        self.audits.pop(job, None)

    def change_leader(self) -> None:
        """The next one reads what it adds to."""
        self.rings.clear()

    def sources(self) -> list[HistorySource]:
        found = [HistorySource(JOB, job, "history", tuple(self._pages(job))) for job in NAMES]
        for job, (plain, zxid) in self.audits.items():
            found.append(HistorySource(JOB, job, "audit", (audit_from("/", plain, zxid),)))
        return [*found, HistorySource(CLUSTER, "removed", "history", (self.removed,))]

    def _pages(self, job: str) -> list[HistoryPage]:
        top = f"/holdfast/jobs/{job}/history/"
        paths = sorted(path for path in self.nodes if path.startswith(top))
        return [page_from(path, self.nodes[path][0], self.nodes[path][2]) for path in paths]

    def _read_ring(self, job: str) -> history.HistoryPages:
        top = f"/holdfast/jobs/{job}/history/"
        paths = sorted(path for path in self.nodes if path.startswith(top))
        if not paths:
            return history.HistoryPages()
        numbers = tuple(int(path.rpartition("/")[2]) for path in paths)
        data, version, zxid = self.nodes[paths[-1]]
        return history.HistoryPages(numbers, version, page_from(paths[-1], data, zxid))

    def _commit(self, ops: Sequence[Op]) -> int:
        self.zxid += 1
        for op in ops:
            if op.kind == "delete":
                del self.nodes[op.path]
                continue
            version = 0 if op.kind == "create" else self.nodes[op.path][1] + 1
            assert op.kind == "create" or op.version == version - 1
            self.nodes[op.path] = (op.data, version, self.zxid)
        return self.zxid


@dataclass
class Reader:
    """Tells, and may die before it has noted how far."""

    position: int = 0
    told: list[Event] = field(default_factory=list)
    gaps: list[Event] = field(default_factory=list)

    def read(self, world: World, upto: int, *, dies: bool) -> None:
        found = events_between(world.sources(), self.position, upto)
        zxids = [event.zxid for event in found]
        assert zxids == sorted(zxids), "events of one reading are in the order of their zxids"
        assert all(self.position < zxid <= upto for zxid in zxids)
        self.told += [event for event in found if event.kind != GAP]
        self.gaps += [event for event in found if event.kind == GAP]
        if not dies:
            self.position = upto

    def covered(self, source: str, zxid: int) -> bool:
        """Whether a gap says that this may be missing."""
        job, _, part = source.partition("/")
        return any(
            gap.name == job
            and gap.id.split("/")[-1].removesuffix("-gap") in (part, "all")
            and int(gap.data["after"]) < zxid <= int(gap.data["upto"])
            for gap in self.gaps
        )


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("decide"), st.sampled_from(NAMES), st.integers(1, 5)),
        st.tuples(st.just("ask"), st.sampled_from(NAMES), st.just(0)),
        st.tuples(st.just("remove"), st.sampled_from(NAMES), st.just(0)),
        st.tuples(st.just("leader"), st.just(""), st.just(0)),
        st.tuples(st.just("read"), st.just(""), st.integers(0, 3)),
        st.tuples(st.just("dies"), st.just(""), st.integers(0, 3)),
    ),
    max_size=60,
)


@given(STEPS)
@settings(max_examples=150, deadline=None)
def test_no_event_is_lost_without_a_gap_and_each_has_one_id_however_often_it_is_told(
    steps: list[tuple[str, str, int]],
) -> None:
    world, reader = World(), Reader()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(history, "HISTORY_PAGE_ENTRIES", 2)
        patch.setattr(history, "HISTORY_PAGES_KEPT", 2)
        for number, (step, job, count) in enumerate(steps):
            match step:
                case "decide":
                    world.decide(job, [f"{number}.{one}" for one in range(count)])
                case "ask":
                    world.ask(job, str(number))
                case "remove":
                    world.remove(job)
                case "leader":
                    world.change_leader()
                case _:
                    upto = max(world.zxid - count, reader.position)
                    reader.read(world, upto, dies=step == "dies")
        reader.read(world, world.zxid, dies=False)
    told = {(event.name, event.zxid, event.reason): event.id for event in reader.told}
    for source, zxid, reason in world.written:
        job = source.partition("/")[0]
        assert (job, zxid, reason) in told or reader.covered(source, zxid), "lost without a word"
    ids = Counter(told.values())
    assert not [one for one, count in ids.items() if count > 1], "two events share an id"
    every = {(event.name, event.zxid, event.reason, event.id) for event in reader.told}
    assert len(every) == len(told), "an event that was told again had another id"


def test_a_reader_that_keeps_up_sees_no_gap_however_much_is_trimmed() -> None:
    world, reader = World(), Reader()
    for number in range(history.HISTORY_PAGE_ENTRIES * (history.HISTORY_PAGES_KEPT + 3)):
        world.decide("a", [str(number)])
        reader.read(world, world.zxid, dies=False)
    assert reader.gaps == []
    assert [event.number for event in reader.told] == list(range(len(world.written)))


def test_what_was_trimmed_while_topics_were_away_is_told_as_one_gap_with_its_bounds() -> None:
    world, reader = World(), Reader()
    world.decide("a", ["first"])
    reader.read(world, world.zxid, dies=False)
    count = history.HISTORY_PAGE_ENTRIES * (history.HISTORY_PAGES_KEPT + 1)
    for number in range(count):
        world.decide("a", [str(number)])
    reader.read(world, world.zxid, dies=False)
    (gap,) = reader.gaps
    kept = [event for event in reader.told if event.reason != "first"]
    assert (gap.name, gap.of, gap.data["after"]) == ("a", JOB, 1)
    assert gap.data["upto"] == kept[0].zxid - 1
    assert gap.data["most"] == kept[0].number
    assert len(kept) + kept[0].number == count + 1


def test_entries_of_another_plane_are_told_once_in_the_order_of_this_one() -> None:
    """A tree that was copied has zxids of where it was."""
    entries = tuple(HistoryEntry(0.0, 1, "PlaceWorker", str(n), 900 + n) for n in range(3))
    page = HistoryPage(entries, 5, 890).filed(40)
    assert [entry.zxid for entry in page.entries] == [40, 40, 40]
    found = events_between([HistorySource(JOB, "a", "history", (page,))], 40, 50)
    assert found == []
    found = events_between([HistorySource(JOB, "a", "history", (page,))], 0, 40)
    assert [event.kind for event in found] == [GAP, *["decided"] * 3]
    assert len({event.id for event in found}) == 4


def test_kinds_say_what_happened_and_model_updates_what_changed() -> None:
    def told(of: str, what: str, **data: str | int) -> Event:
        entry = HistoryEntry(1.0, 0, what, "words", 7, data)
        page = HistoryPage((entry,)).filed(7)
        return events_between([HistorySource(of, "it", "history", (page,))], 0, 7)[0]

    kinds = {
        told(JOB, "SetStatus", phase="running").kind: "phase",
        told(JOB, "CommitCheckpoint", step=4).kind: "checkpoint.committed",
        told(JOB, "PlaceWorker").kind: "decided",
        told(JOB, "Asked").kind: "asked",
        told(SERVICE, "Shifting", plan=3, stage="shifting").kind: "rollout",
        told(SERVICE, "Scale").kind: "decided",
        told(MODEL, "Published", version=3).kind: "published",
    }
    assert all(found == meant for found, meant in kinds.items())
    data: dict[str, str | int] = {"alias": "prod", "from": 2, "to": 3}
    moved = told(MODEL, "AliasMoved", **data)
    assert records.decode(records.encode(moved)) == moved
    update = records.model_updated(moved)
    assert update is not None
    wanted = {"model": "it", "change": "alias.moved", "alias": "prod", "from": 2, "to": 3}
    assert wanted.items() <= update.items()
    assert update["id"] == moved.id
    assert records.model_updated(told(JOB, "PlaceWorker")) is None
