"""What every online store does with rows: the newest one stays, whoever writes them in whichever
order, and all of it is read in one call."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable

import pytest

from holdfast.features import rows
from holdfast.features.keys import KEY_BYTES_MAX
from holdfast.features.layout import HEADER_BYTES
from holdfast.features.online.store import Asked, OnlineStore
from holdfast.features.rows import Row
from holdfast.features.table import ROW_BYTES_MAX, Level, Table
from holdfast.system.tasks import WAITED, start_thread
from holdfast.wire.errors import TooLarge, Usage
from tests.contract.features.backends import Backend
from tests.contract.features.made import (
    DAY_US,
    deletion,
    everything,
    look,
    newest,
    now_us,
    prepared,
    row_of,
    table_of,
)
from tests.waiting import eventually

THREADS = 8


@pytest.fixture
def table(store: OnlineStore, backend: Backend, name: str) -> Table:
    return prepared(store, backend, name)


# --- reading what was written ---------------------------------------------------------------------


def test_what_was_written_is_read_byte_for_byte(store: OnlineStore, table: Table) -> None:
    row = row_of(table, "a", trips=7, rating=4.5, city="Rome")
    assert store.write(table, [row]) == [True]
    assert newest(store, table, row) == row.data
    values = rows.decode(table, row.data)
    assert (values["trips"], values["city"]) == (7, "Rome")


def test_any_bytes_are_a_key(store: OnlineStore, backend: Backend, name: str) -> None:
    table = prepared(store, backend, name, key="bytes")
    keys = [b"\0", b"\xff" * 40, b"{a}b", b"{}", b"a{b", b"*?[a]\\", b"\r\n$1\r\n", b"k" * 1_000]
    keys += [bytes([value]) for value in range(1, 255)]
    written = [row_of(table, key, trips=number) for number, key in enumerate(keys)]
    assert all(store.write(table, written))
    assert look(store, table, *keys) == [row.data for row in written]
    assert everything(store, table) == {row.key: row.data for row in written}


def test_keys_that_nobody_wrote_are_none_and_each_answer_is_at_its_place(
    store: OnlineStore, table: Table
) -> None:
    one, two = row_of(table, "one", trips=1), row_of(table, "two", trips=2)
    store.write(table, [one, two])
    asked = [b"two", b"nobody", b"one", b"two", b"none"]
    assert look(store, table, *asked) == [two.data, None, one.data, two.data, None]
    assert look(store, table) == []
    assert store.read([]) == []
    assert store.write(table, []) == []


def test_several_tables_are_read_in_one_call(
    store: OnlineStore, backend: Backend, name: str
) -> None:
    tables = [prepared(store, backend, f"{name}_{number}") for number in range(4)]
    written = [row_of(table, "a", trips=number) for number, table in enumerate(tables)]
    for table, row in zip(tables, written, strict=True):
        store.write(table, [row])
    asked = [Asked(table, [b"a", b"b"], table.read_level) for table in (*tables, tables[0])]
    asked.insert(2, Asked(tables[3], [], tables[3].read_level))
    found = store.read(asked)
    assert found.pop(2) == []
    assert found == [[row.data, None] for row in (*written, written[0])]


def test_both_levels_see_what_was_written_when_nothing_is_under_way(
    store: OnlineStore, table: Table
) -> None:
    row = row_of(table, trips=1)
    store.write(table, [row])
    for level in Level:
        assert store.read([Asked(table, [row.key], level)]) == [[row.data]]


def test_thousands_of_rows_are_written_and_read_in_one_call(
    store: OnlineStore, table: Table
) -> None:
    written = [row_of(table, f"driver-{number}", trips=number) for number in range(3_000)]
    assert all(store.write(table, written))
    assert look(store, table, *[row.key for row in written]) == [row.data for row in written]


def test_a_second_store_sees_the_rows_of_the_first(
    store: OnlineStore, backend: Backend, table: Table
) -> None:
    row = row_of(table, trips=1)
    store.write(table, [row])
    other = backend.open()
    try:
        other.prepare(table)  # twice is once
        assert newest(other, table, row) == row.data
    finally:
        other.close()


# --- which row is the newest ----------------------------------------------------------------------


def test_late_data_never_overwrites_newer(store: OnlineStore, table: Table) -> None:
    new = row_of(table, at_us=DAY_US + 1, writer=0, trips=1)
    late = row_of(table, at_us=DAY_US, writer=2**64 - 1, sequence=2**64 - 1, trips=2**62)
    store.write(table, [new])
    store.write(table, [late])
    assert newest(store, table, new) == new.data
    newer = row_of(table, at_us=DAY_US + 2, writer=0, trips=-1)
    assert store.write(table, [newer]) == [True]
    assert newest(store, table, new) == newer.data


def test_ties_are_decided_the_same_way_whatever_the_order_of_arrival(
    store: OnlineStore, backend: Backend, name: str
) -> None:
    table = prepared(store, backend, name, key="int64")
    one_time = (
        row_of(table, 0, writer=1, sequence=9, trips=9, city="zzz"),
        row_of(table, 0, writer=2, sequence=1, trips=1, city="longer than the others"),
        row_of(table, 0, writer=2, sequence=2, trips=0),
        row_of(table, 0, writer=2, sequence=2, trips=3, city="b"),
    )
    orders = list(itertools.permutations(row.data for row in one_time))
    keys = [table.key_bytes(number) for number in range(len(orders))]
    for turn in range(len(one_time)):
        store.write(table, [Row(key, order[turn]) for key, order in zip(keys, orders, strict=True)])
    assert set(look(store, table, *keys)) == {max(row.data for row in one_time)}


def test_versions_are_compared_as_bytes_of_every_value(
    store: OnlineStore, backend: Backend, name: str
) -> None:
    """A byte of 0, 0x80 or 0xff is what comparisons of text get wrong."""
    table = prepared(store, backend, name, key="bytes")
    low: list[Row] = []
    high: list[Row] = []
    for place, value in itertools.product((0, 3, 7), range(255)):
        for writer, sequence in ((1, 0), (0, 1)):
            key = bytes([1 + place, value, writer])
            for rows_of_it, byte in ((low, value), (high, value + 1)):
                number = byte << 8 * place | (0xFF00FF80 if byte == value else 0) % (1 << 8 * place)
                given = {"writer": number * writer, "sequence": number * sequence}
                rows_of_it.append(row_of(table, key, **given))
    keys = [row.key for row in high]
    store.write(table, low)
    store.write(table, high)
    store.write(table, low)
    assert look(store, table, *keys) == [row.data for row in high]


@pytest.mark.parametrize("year", [-9_000, -1, 1_968, 1_970, 1_971, 9_999])
def test_times_are_compared_as_times_before_and_after_1970(
    store: OnlineStore, table: Table, year: int
) -> None:
    at_us = (year - 1_970) * 31_557_600_000_000
    first, second = row_of(table, at_us=at_us), row_of(table, at_us=at_us + 1)
    store.write(table, [first])
    store.write(table, [second])
    store.write(table, [first])
    assert newest(store, table, first) == second.data


def test_the_body_decides_where_the_versions_are_equal_however_far_behind(
    store: OnlineStore, table: Table
) -> None:
    front = "x" * 5_000
    small, large = row_of(table, city=f"{front}\x00a"), row_of(table, city=f"{front}\x00b")
    longer = row_of(table, city=f"{front}\x00bb")
    largest = max(row.data for row in (small, large, longer))
    for order in itertools.permutations((small, large, longer)):
        for row in order:
            store.write(table, [row])
        assert newest(store, table, small) == largest


def test_writing_twice_is_harmless(store: OnlineStore, table: Table) -> None:
    row = row_of(table, trips=1)
    for _ in range(3):
        assert len(store.write(table, [row, row])) == 2
        assert newest(store, table, row) == row.data
    assert everything(store, table) == {row.key: row.data}


def test_of_several_rows_of_one_key_in_one_write_the_newest_stays(
    store: OnlineStore, table: Table
) -> None:
    written = [row_of(table, at_us=DAY_US + number % 7, trips=number) for number in range(50)]
    store.write(table, written)
    assert newest(store, table, written[0]) == max(row.data for row in written)


def test_a_deleted_row_stays_deleted_against_late_writes(store: OnlineStore, table: Table) -> None:
    early, late = row_of(table, at_us=DAY_US, trips=1), row_of(table, at_us=DAY_US + 1, trips=2)
    gone = deletion(table, at_us=DAY_US + 2)
    after = row_of(table, at_us=DAY_US + 3, trips=3)
    store.write(table, [early])
    store.write(table, [gone])
    store.write(table, [late])
    found = newest(store, table, late)
    assert found is None or rows.is_deleted(found)
    assert store.write(table, [after]) == [True]
    assert newest(store, table, after) == after.data


def test_a_row_that_was_never_there_can_be_deleted(store: OnlineStore, table: Table) -> None:
    gone, late = deletion(table, at_us=DAY_US + 1), row_of(table, at_us=DAY_US)
    store.write(table, [gone])
    store.write(table, [late])
    found = newest(store, table, late)
    assert found is None or rows.is_deleted(found)


def test_a_deletion_wins_over_a_row_of_its_very_version(store: OnlineStore, table: Table) -> None:
    gone, row = deletion(table), row_of(table, trips=1)
    for order in ((gone, row), (row, gone)):
        for one in order:
            store.write(table, [one])
        found = newest(store, table, row)
        assert found is None or rows.is_deleted(found)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_in_whatever_order_rows_come_the_newest_of_each_key_is_there(
    store: OnlineStore, backend: Backend, name: str, seed: int
) -> None:
    print(f"seed {seed}")
    chance = random.Random(seed)
    table = prepared(store, backend, name, key="int64")
    written: list[Row] = []
    for _ in range(400):
        driver, at_us = chance.randrange(40), DAY_US + chance.randrange(4)
        version = (at_us, chance.randrange(3), chance.randrange(3))
        if chance.random() < 0.2:
            written.append(deletion(table, driver, *version))
        else:
            written.append(row_of(table, driver, *version, trips=chance.randrange(100)))
    arriving = [*written, *chance.choices(written, k=200)]
    chance.shuffle(arriving)
    while arriving:
        count = chance.randrange(1, 80)
        store.write(table, arriving[:count])
        del arriving[:count]
    best: dict[bytes, bytes] = {}
    for row in written:
        best[row.key] = max(row.data, best.get(row.key, b""))
    for key, data in best.items():
        (found,) = look(store, table, key)
        assert found == data or (found is None and rows.is_deleted(data)), key


# --- many at a time -------------------------------------------------------------------------------


def at_once(*works: Callable[[], None]) -> None:
    """Do all of it, each in a thread; raise what one has died of."""
    threads = [start_thread(work, f"at-once-{n}", WAITED) for n, work in enumerate(works)]
    for thread in threads:
        thread.result()


def test_no_row_is_torn_and_none_goes_back_under_eight_threads(
    store: OnlineStore, backend: Backend, name: str
) -> None:
    columns = {f"c{number}": "int64" for number in range(20)} | {"text": "string"}
    table = prepared(store, backend, name, columns=columns)
    keys = [table.key_bytes(f"driver-{number}") for number in range(3)]
    writing = threading.Event()
    last: dict[int, dict[bytes, bytes]] = {}

    def write(writer: int) -> None:
        mine = last.setdefault(writer, {})
        for count in range(60):
            number = 1_000 * count + writer
            values = dict.fromkeys(columns, number) | {"text": str(number) * (1 + number % 300)}
            batch = [
                row_of(table, f"driver-{n}", DAY_US + count, writer, count, **values)
                for n in range(3)
            ]
            store.write(table, batch)
            mine.update({row.key: row.data for row in batch})

    def read() -> None:
        before: list[bytes] = [b""] * len(keys)
        while not writing.is_set():
            for place, found in enumerate(look(store, table, *keys)):
                if found is None:
                    assert not before[place]
                    continue
                values = rows.decode(table, found)
                number = values["c0"]
                assert isinstance(number, int)
                assert {values[f"c{n}"] for n in range(20)} == {number}, "a mixture of two writes"
                assert values["text"] == str(number) * (1 + number % 300)
                assert not backend.strong or found >= before[place], "an older row came back"
                before[place] = found

    def write_all() -> None:
        try:
            at_once(*(lambda writer=writer: write(writer) for writer in range(THREADS)))
        finally:
            writing.set()

    at_once(write_all, *[read] * 2)
    for key, found in zip(keys, look(store, table, *keys), strict=True):
        assert found == max(mine[key] for mine in last.values())


def test_one_store_answers_many_threads_each_with_its_own(
    store: OnlineStore, backend: Backend, name: str
) -> None:
    table = prepared(store, backend, name, key="int64")

    def work(number: int) -> None:
        for turn in range(25):
            row = row_of(table, 100 * number + turn, trips=number)
            store.write(table, [row])
            assert look(store, table, row.key, b"nobody") == [row.data, None]

    at_once(*(lambda number=number: work(number) for number in range(4 * THREADS)))


# --- sizes ----------------------------------------------------------------------------------------


def test_a_row_of_the_largest_size_is_kept(store: OnlineStore, backend: Backend, name: str) -> None:
    table = prepared(store, backend, name, columns={"blob": "bytes"})
    around = len(row_of(table, blob=b"").data)
    blob = random.Random(1).randbytes(ROW_BYTES_MAX - around)
    largest = [row_of(table, number * "a", blob=blob) for number in (1, 2, 3)]
    assert len(largest[0].data) == ROW_BYTES_MAX
    assert all(store.write(table, largest))
    assert look(store, table, *[row.key for row in largest]) == [row.data for row in largest]


@pytest.mark.parametrize("how", ["row", "key", "header", "no key"])
def test_what_is_no_row_of_a_table_is_refused_and_nothing_is_written(
    store: OnlineStore, table: Table, how: str
) -> None:
    good = row_of(table, trips=1)
    bad, kind = {
        "row": (Row(b"b", good.data + bytes(ROW_BYTES_MAX)), TooLarge),
        "key": (Row(b"k" * (KEY_BYTES_MAX + 1), good.data), TooLarge),
        "header": (Row(b"b", good.data[: HEADER_BYTES - 1]), Usage),
        "no key": (Row(b"", good.data), Usage),
    }[how]
    with pytest.raises(kind, match=table.name):
        store.write(table, [good, bad])
    assert look(store, table, good.key) == [None]


# --- going over all of them -----------------------------------------------------------------------


def test_a_scan_sees_every_row_of_its_table_and_no_other(
    store: OnlineStore, backend: Backend, name: str
) -> None:
    table = prepared(store, backend, name)
    beside = [prepared(store, backend, f"{name}{more}") for more in ("_", "0")]
    for other in beside:
        store.write(other, [row_of(other, trips=1)])
    written = {row.key: row for row in (row_of(table, f"d{n}", trips=n) for n in range(2_500))}
    store.write(table, list(written.values()))
    gone = [deletion(table, f"d{number}", DAY_US + 1) for number in range(10)]
    store.write(table, gone)
    seen = everything(store, table)
    living = {key: data for key, data in seen.items() if not rows.is_deleted(data)}
    expected = {key: row.data for key, row in written.items()}
    for one in gone:
        del expected[one.key]
    assert living == expected


def test_a_scan_of_nothing_ends(store: OnlineStore, table: Table) -> None:
    assert everything(store, table) == {}


def test_a_forgotten_table_has_no_rows_and_others_keep_theirs(
    store: OnlineStore, backend: Backend, name: str
) -> None:
    table, other = prepared(store, backend, name), prepared(store, backend, f"{name}_")
    written = [row_of(table, f"d{number}", trips=number) for number in range(1_500)]
    store.write(table, written)
    store.write(other, [row_of(other, trips=1)])
    store.forget(table)
    store.forget(table)
    store.prepare(table)
    assert everything(store, table) == {}
    assert newest(store, table, written[0]) is None
    assert len(everything(store, other)) == 1
    older = row_of(table, "d0", DAY_US - 1)
    assert store.write(table, [older]) == [True], "what it was is forgotten, too"
    assert newest(store, table, older) == older.data


# --- time to live ---------------------------------------------------------------------------------


def test_a_row_goes_when_its_time_is_over_counted_from_its_event(
    store: OnlineStore, backend: Backend, name: str
) -> None:
    table = prepared(store, backend, name, ttl="60s")
    row = row_of(table, at_us=now_us() - 57_000_000, trips=1)
    fresh = row_of(table, "fresh", at_us=now_us(), trips=1)
    store.write(table, [row, fresh])
    eventually(lambda: newest(store, table, row) is None, "its time is over")
    assert newest(store, table, fresh) == fresh.data


def test_a_row_whose_time_is_over_is_not_written(
    store: OnlineStore, backend: Backend, name: str
) -> None:
    table = prepared(store, backend, name, ttl="60s")
    old = row_of(table, "old", at_us=now_us() - 3_600_000_000)
    ancient = row_of(table, "ancient", at_us=-(10**15))
    fresh = row_of(table, "fresh", at_us=now_us())
    store.write(table, [old, ancient, fresh])
    assert look(store, table, old.key, ancient.key, fresh.key) == [None, None, fresh.data]


def test_a_deleted_row_is_remembered_although_rows_have_a_time_to_live(
    store: OnlineStore, backend: Backend, name: str
) -> None:
    table = prepared(store, backend, name, ttl="1s")
    at_us = now_us() + 30_000_000  # so that the late row is young enough all the time
    gone, late = deletion(table, at_us=at_us), row_of(table, at_us=at_us - 1)
    store.write(table, [gone])
    store.write(table, [late])
    found = newest(store, table, late)
    assert found is None or rows.is_deleted(found)


def test_a_table_without_a_time_to_live_keeps_what_is_old(store: OnlineStore, table: Table) -> None:
    row = row_of(table, at_us=0, trips=1)
    store.write(table, [row])
    assert newest(store, table, row) == row.data


def test_a_table_that_gets_another_time_to_live_goes_on(
    store: OnlineStore, backend: Backend, name: str
) -> None:
    at_us = now_us()
    table = prepared(store, backend, name)
    store.write(table, [row_of(table, at_us=at_us)])
    shorter = prepared(store, backend, name, ttl="1d")
    assert table_of(backend, name).ttl_s is None
    row = row_of(shorter, at_us=at_us + 1, trips=2)
    assert store.write(shorter, [row]) == [True]
    assert newest(store, shorter, row) == row.data
