"""What `FeatureStore` adds to an engine: definitions, versions, ages and times to live. The engines
themselves are tried in tests/contract/features."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from holdfast.features import rows
from holdfast.features.online.store import Asked, Found, StoreStatus
from holdfast.features.registry import _after
from holdfast.features.rows import Row
from holdfast.features.store import FeatureStore
from holdfast.features.table import Table, change
from holdfast.wire.errors import Corrupt, TooLarge, Unavailable, Usage

NOW_S = 1_800_000_000.0
DRIVERS = Table("drivers", key="driver_id", ttl="1h", columns={"trips": "int64", "city": "string"})
VIEWS = Table("views", key=["user", "item"], consistency="bounded: 5s", columns={"seen": "int64"})


class HandClock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.s = NOW_S

    def now_s(self) -> float:
        return self.s

    def wall_ms(self) -> int:
        return int(self.s * 1_000)


class Held:
    """The rule that all engines keep: of two rows the larger bytes stay."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, bytes], bytes] = {}
        self.reads: list[list[tuple[str, int]]] = []
        self.away = False

    def prepare(self, table: Table) -> None: ...

    def forget(self, table: Table) -> None: ...

    def write(self, table: Table, rows: Sequence[Row]) -> list[bool]:
        if self.away:
            raise Unavailable("the store is away")
        done = []
        for row in rows:
            before = self.rows.get((table.name, row.key), b"")
            done.append(row.data > before)
            self.rows[table.name, row.key] = max(before, row.data)
        return done

    def read(self, asked: Sequence[Asked]) -> list[list[Found]]:
        if self.away:
            raise Unavailable("the store is away")
        self.reads.append([(one.table.name, len(one.keys)) for one in asked])
        return [[self.rows.get((one.table.name, key)) for key in one.keys] for one in asked]

    def scan(self, table: Table, after: bytes = b"") -> tuple[list[tuple[bytes, bytes]], bytes]:
        return [], b""

    def status(self) -> StoreStatus:
        return StoreStatus("held", ())

    def close(self) -> None: ...


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def held() -> Held:
    return Held()


@pytest.fixture
def store(held: Held, clock: HandClock) -> Iterator[FeatureStore]:
    tables = {"drivers": DRIVERS, "views": VIEWS}
    with FeatureStore(tables.__getitem__, held, clock=clock) as made:
        yield made


def test_all_tables_are_read_in_one_round_trip(store: FeatureStore, held: Held) -> None:
    store.put("drivers", {"driver_id": "d", "trips": 3})
    store.put("views", {"user": "u", "item": "i", "seen": 4})
    found = store.read({"drivers": ["d", "e"], "views": {"user": ["u"], "item": ["i"]}})
    assert held.reads == [[("drivers", 2), ("views", 1)]]
    assert found["drivers"].present.tolist() == [True, False]
    assert found["drivers"].columns["trips"].tolist() == [3, 0]
    assert found["views"].columns["seen"].tolist() == [4]


def test_a_bounded_table_is_read_again_when_its_age_is_over_and_tells_it(
    store: FeatureStore, held: Held, clock: HandClock
) -> None:
    key = {"user": ["u"], "item": ["i"]}
    assert store.read({"views": key})["views"].age_s == 0.0
    held.write(VIEWS, [rows.encode(VIEWS, rows.RowVersion(1, 1, 1), _view(9))])
    clock.s += 3.0
    old = store.read({"views": key})["views"]
    assert (old.age_s, old.present.tolist()) == (3.0, [False])
    assert store.read({"views": key}, fresh=True)["views"].columns["seen"].tolist() == [9]
    clock.s += 3.0
    new = store.read({"views": key})["views"]
    assert (new.age_s, new.columns["seen"].tolist()) == (3.0, [9]), "the fresh read has filled it"


def test_what_this_process_writes_it_reads_at_once(store: FeatureStore, clock: HandClock) -> None:
    store.put("views", _view(1))
    store.read({"views": {"user": ["u"], "item": ["i"]}})
    clock.s += 1.0
    store.put("views", _view(2))
    found = store.read({"views": {"user": ["u"], "item": ["i"]}})["views"]
    assert found.columns["seen"].tolist() == [2]


def test_a_row_whose_time_to_live_is_over_is_not_there(
    store: FeatureStore, clock: HandClock
) -> None:
    store.put("drivers", {"driver_id": "d", "trips": 3, "city": "Roma"})
    clock.s += 3_599.0
    assert store.read({"drivers": ["d"]})["drivers"].present.tolist() == [True]
    clock.s += 1.0
    gone = store.read({"drivers": ["d"]})["drivers"]
    assert (gone.present.tolist(), gone.columns["city"]) == ([False], [None])
    assert gone.columns["trips"].tolist() == [0]
    row = store.get("drivers", "d")
    assert row is not None and row.expired and row.values["trips"] == 3


def test_a_deletion_wins_over_what_was_written_before_also_by_clocks_that_are_ahead(
    store: FeatureStore, held: Held, clock: HandClock
) -> None:
    ahead = FeatureStore(lambda _: DRIVERS, held, clock=clock)
    clock.s += 30.0
    ahead.put("drivers", {"driver_id": "d", "trips": 3})
    clock.s -= 30.0
    assert store.delete("drivers", "d")
    assert store.read({"drivers": ["d"]})["drivers"].present.tolist() == [False]
    assert store.put("drivers", {"driver_id": "d", "trips": 4}) == [False], "of before the deletion"


def test_an_event_of_the_future_is_refused_and_with_it_all_rows_beside_it(
    store: FeatureStore, held: Held, clock: HandClock
) -> None:
    late = {"driver_id": "d", "at": int((clock.s + 61.0) * 1e6), "trips": 1}
    with pytest.raises(Usage, match=r"row 1: .*future"):
        store.put("drivers", [{"driver_id": "e", "trips": 1}, late])
    assert not held.rows


def test_too_many_keys_and_one_key_for_a_list_are_refused(store: FeatureStore) -> None:
    with pytest.raises(TooLarge, match="10001 keys"):
        store.read({"drivers": ["d"] * 10_001})
    with pytest.raises(Usage, match="is one key"):
        store.read({"drivers": "d7"})


def test_a_reader_of_an_older_definition_asks_for_the_newer_one(
    held: Held, clock: HandClock
) -> None:
    newer = change(
        DRIVERS, Table("drivers", key="driver_id", ttl="1h", columns={**_TYPES, "km": "float64"})
    ).table
    FeatureStore(lambda _: newer, held, clock=clock).put(
        "drivers", {"driver_id": "d", "trips": 1, "km": 2.5}
    )
    known = iter([DRIVERS, newer])
    found = FeatureStore(lambda _: next(known), held, clock=clock).read({"drivers": ["d"]})
    assert found["drivers"].columns["km"].tolist() == [2.5]


def test_a_table_made_after_another_of_its_name_reads_none_of_its_rows_as_its_own(
    held: Held, clock: HandClock
) -> None:
    FeatureStore(lambda _: DRIVERS, held, clock=clock).put(
        "drivers", {"driver_id": "d", "trips": 1, "city": "Roma"}
    )
    other = Table("drivers", key="driver_id", columns={"a": "float64", "b": "string"})
    after = _after(DRIVERS.schema, change(None, other).table)
    with pytest.raises(Corrupt):
        FeatureStore(lambda _: after, held, clock=clock).read({"drivers": ["d"]})


def test_columns_are_chosen_by_table(store: FeatureStore) -> None:
    store.put("drivers", {"driver_id": "d", "trips": 3, "city": "Roma"})
    found = store.read({"drivers": ["d"]}, {"drivers": ["city"]})["drivers"]
    assert found.columns == {"city": ["Roma"]}
    with pytest.raises(Usage, match="no column 'cty'"):
        store.read({"drivers": ["d"]}, {"drivers": ["cty"]})
    assert np.array_equal(found.present, [True])


_TYPES = {"trips": "int64", "city": "string"}


def _view(seen: int) -> dict[str, object]:
    return {"user": "u", "item": "i", "seen": seen}
