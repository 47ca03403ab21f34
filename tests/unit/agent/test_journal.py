"""The agent's journal: what was made durable comes back, a torn tail is cut, damage is refused."""

from __future__ import annotations

import resource
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.agent.events import (
    Accepted,
    Entry,
    Exited,
    Forgotten,
    Held,
    Identity,
    Key,
    Moved,
    Slots,
    Started,
    Stopping,
    TermSeen,
)
from holdfast.agent.journal import NAME, Journal, decode, encode
from holdfast.wire.errors import Corrupt, DiskFailed, Full
from holdfast.wire.probes import Probe, ProbeKind
from holdfast.wire.reports import Exit, ExitKind
from tests.unit.agent.driving import start

KEY = Key("job", 1)
PROBE = Probe(ProbeKind.EXEC, command=("true",), within_s=3.0)
BATCHES: list[list[Entry]] = [
    [TermSeen(3), Accepted(start(environment={"A": "ä"}), Slots((1,), (0,), (20000, 20001)))],
    [Started(KEY, Identity(4, 5, "boot"))],
    [Held(KEY, 1, None), Stopping(KEY, 12.5, hung=True)],
    [Held(KEY, 0, None, ready=False, linked=False), Stopping(KEY, 12.5, unwell="live: no")],
    [Accepted(start(3, ports={"http": 0}, ready=PROBE, live=PROBE), Slots((), (), (7, 8, 9)))],
    [Moved(KEY, Slots((), (), (7, 8))), Stopping(KEY, 12.5, frozen=True)],
    [Exited(KEY, Exit(ExitKind.HUNG, "ö\n")), Forgotten(KEY)],
]
ENTRIES = [entry for batch in BATCHES for entry in batch]

KEYS = st.builds(Key, st.text(max_size=5), st.integers(1))
ANY_ENTRY: st.SearchStrategy[Entry] = st.one_of(
    st.builds(TermSeen, st.integers(0)),
    st.builds(Accepted, st.builds(start, st.integers(1)), st.builds(Slots)),
    st.builds(Started, KEYS, st.builds(Identity, st.integers(), st.integers(), st.text())),
    st.builds(Held, KEYS, st.integers(0), st.none() | st.integers(0)),
    st.builds(Stopping, KEYS, st.floats(allow_nan=False), st.booleans(), st.booleans()),
    st.builds(Moved, KEYS, st.builds(Slots)),
    st.builds(Exited, KEYS, st.builds(Exit, st.sampled_from(ExitKind), st.text())),
    st.builds(Forgotten, KEYS),
)


def written(folder: Path) -> Path:
    journal, recovery = Journal.open(folder)
    assert recovery.entries == []
    for batch in BATCHES:
        journal.append(batch)
    journal.close()
    return folder / NAME


def read(folder: Path) -> tuple[list[Entry], int]:
    journal, recovery = Journal.open(folder)
    journal.close()
    return recovery.entries, recovery.cut_bytes


@given(ANY_ENTRY)
def test_an_entry_is_the_same_after_it_was_written_and_read(entry: Entry) -> None:
    assert decode(encode(entry)) == entry


@pytest.mark.parametrize("record", [{}, {"kind": "held", "key": ["a"]}])
def test_an_entry_that_is_none_is_refused(record: dict[str, object]) -> None:
    with pytest.raises(Corrupt, match="not one"):
        decode(record)


def test_an_entry_of_an_unknown_kind_is_none() -> None:
    assert decode({"kind": "new", "key": 1}) is None


def test_what_was_appended_comes_back_in_order(tmp_path: Path) -> None:
    written(tmp_path)
    assert read(tmp_path) == (ENTRIES, 0)


def test_a_journal_torn_at_any_byte_gives_whole_batches_and_goes_on(tmp_path: Path) -> None:
    raw = written(tmp_path).read_bytes()
    header = len(raw) - sum(len(part) for part in _batches(tmp_path, raw))
    counts = set()
    for length in range(header, len(raw)):
        (tmp_path / NAME).write_bytes(raw[:length])
        journal, recovery = Journal.open(tmp_path)
        whole = [BATCHES[:count] for count in range(len(BATCHES) + 1)]
        flat = [[entry for batch in each for entry in batch] for each in whole]
        assert recovery.entries in flat[:-1]
        counts.add(len(recovery.entries))
        if length % 10 == 0:  # an fsync each
            journal.append([TermSeen(99)])
            assert read(tmp_path) == ([*recovery.entries, TermSeen(99)], 0)
        journal.close()
    assert counts == {0, 2, 3, 5, 7, 8, 10}


def test_a_tail_of_anything_but_a_batch_is_cut(tmp_path: Path) -> None:
    path = written(tmp_path)
    raw = path.read_bytes()
    for tail in (b"\0" * 5000, b"\xf5HFJ", b"x" * 17):
        path.write_bytes(raw + tail)
        assert read(tmp_path) == (ENTRIES, len(tail))
        assert path.read_bytes() == raw


def test_a_changed_byte_is_refused_wherever_a_later_batch_proves_it(tmp_path: Path) -> None:
    path = written(tmp_path)
    raw = path.read_bytes()
    last = len(raw) - len(_batches(tmp_path, raw)[-1])
    files = len(list(Path("/proc/self/fd").iterdir()))
    for at in range(last):
        path.write_bytes(raw[:at] + bytes([raw[at] ^ 0x20]) + raw[at + 1 :])
        with pytest.raises(Corrupt, match="damaged"):
            Journal.open(tmp_path)
    assert len(list(Path("/proc/self/fd").iterdir())) < files + last, "each refused one stays open"


def test_a_batch_that_is_missing_from_the_middle_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path)
    raw = path.read_bytes()
    parts = _batches(tmp_path, raw)
    header = raw[: len(raw) - sum(map(len, parts))]
    filler = b"\0" * len(parts[1])
    path.write_bytes(header + parts[0] + filler + parts[2] + parts[3])
    with pytest.raises(Corrupt, match="damaged"):
        Journal.open(tmp_path)


def test_bytes_of_another_journal_are_never_taken(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    raw = written(tmp_path / "a").read_bytes()
    other = written(tmp_path / "b").read_bytes()
    assert len(raw) == len(other)
    first = len(raw) - sum(len(part) for part in _batches(tmp_path / "a", raw)[1:])
    (tmp_path / "a" / NAME).write_bytes(raw[:first] + other[first:])
    with pytest.raises(Corrupt, match="damaged"):
        Journal.open(tmp_path / "a")


def test_compaction_keeps_the_state_and_appends_go_on(tmp_path: Path) -> None:
    journal, _ = Journal.open(tmp_path)
    for _ in range(200):
        journal.append(BATCHES[0])
    long = journal.size_bytes
    journal.compact(ENTRIES)
    assert journal.size_bytes < long / 10
    journal.append([TermSeen(7)])
    journal.close()
    assert read(tmp_path) == ([*ENTRIES, TermSeen(7)], 0)


def test_a_journal_asks_for_compaction_when_it_has_grown(tmp_path: Path) -> None:
    journal, _ = Journal.open(tmp_path)
    detail = Exit(ExitKind.ERROR, "x" * 200_000)
    grown = 0
    while not journal.wants_compaction:
        journal.append([Exited(KEY, detail)])
        grown += 1
        assert grown < 100
    journal.compact([Forgotten(KEY)])
    assert not journal.wants_compaction
    journal.close()


def test_an_unfinished_compaction_is_thrown_away(tmp_path: Path) -> None:
    written(tmp_path)
    (tmp_path / f"{NAME}.tmp").write_bytes(b"half")
    assert read(tmp_path) == (ENTRIES, 0)
    assert not (tmp_path / f"{NAME}.tmp").exists()


def test_a_compaction_that_the_disk_refuses_is_a_failed_disk_and_not_one_without_room(
    tmp_path: Path,
) -> None:
    """Whoever takes it for a want of room tries for ever, and says nothing to anybody."""
    journal, _ = Journal.open(tmp_path)
    journal.append(ENTRIES)
    (tmp_path / f"{NAME}.tmp").mkdir()  # no file can be made there, however much room there is
    with pytest.raises(DiskFailed, match="cannot be written"):
        journal.compact(ENTRIES)
    with pytest.raises(DiskFailed, match="failed before"):
        journal.append(BATCHES[0])
    journal.close()
    (tmp_path / f"{NAME}.tmp").rmdir()
    assert read(tmp_path) == (ENTRIES, 0)


def test_a_compaction_without_room_leaves_the_journal_as_it_was_and_is_asked_for_later(
    tmp_path: Path,
) -> None:
    journal, _ = Journal.open(tmp_path)
    journal.append(ENTRIES)
    journal._compact_at = 0
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50, hard))
    try:
        with pytest.raises(Full, match="no room"):
            journal.compact(ENTRIES)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not journal.wants_compaction
    assert not (tmp_path / f"{NAME}.tmp").exists()
    journal.append(BATCHES[0])
    journal.close()
    assert read(tmp_path) == (ENTRIES + list(BATCHES[0]), 0)


def test_without_room_nothing_of_a_batch_stays_and_later_it_is_written(tmp_path: Path) -> None:
    journal, _ = Journal.open(tmp_path)
    journal.append(BATCHES[0])
    size = journal.size_bytes
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20, hard))
    try:
        with pytest.raises(Full, match="no room"):
            journal.append(BATCHES[1])
        assert (tmp_path / NAME).stat().st_size == size
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    journal.append(BATCHES[1])
    journal.close()
    assert read(tmp_path) == (BATCHES[0] + BATCHES[1], 0)


def _batches(folder: Path, raw: bytes) -> list[bytes]:
    """The bytes of each batch, by writing them again one at a time."""
    (folder / "measure").mkdir(exist_ok=True)
    path = folder / "measure" / NAME
    path.unlink(missing_ok=True)
    journal, _ = Journal.open(folder / "measure")
    ends = [journal.size_bytes]
    for batch in BATCHES:
        journal.append(batch)
        ends.append(journal.size_bytes)
    journal.close()
    return [raw[start:end] for start, end in pairwise(ends)]
