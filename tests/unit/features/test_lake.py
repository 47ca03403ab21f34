"""A table's history in a folder: made, changed, appended to, erased from, and what is refused."""

from __future__ import annotations

import dataclasses
import datetime
import json
import math
import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from deltalake import DeltaTable
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.features import rows as feature_rows
from holdfast.features.history import Lake, history
from holdfast.features.history import lake as lakes
from holdfast.features.history.log import LakeLog
from holdfast.features.history.shape import as_ordered, as_unsigned, frame_of, frame_of_rows
from holdfast.features.rows import RowVersion, RowVersions
from holdfast.features.table import change
from holdfast.system.clock import SystemClock
from holdfast.wire.errors import (
    Conflict,
    Corrupt,
    Full,
    Missing,
    Refused,
    TooLarge,
    Unavailable,
    Usage,
)
from tests.unit.features.history_made import (
    DAY_US,
    NOON_US,
    drivers,
    everything,
    made,
    pairs,
    rows,
    sequences,
)


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    yield made(tmp_path)


# --- made and changed -----------------------------------------------------------------------------


def test_a_history_is_made_once_however_many_make_it(tmp_path: Path) -> None:
    lake = Lake(tmp_path, drivers())
    assert not lake.exists()
    with pytest.raises(Missing, match="no history"):
        lake.log()
    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(lambda _: Lake(tmp_path, drivers()).create(), range(4)))
    assert done.count(True) == 1
    assert (lake.exists(), lake.log().version) == (True, 0)


def test_it_lies_in_the_blob_store_readable_by_its_owner_alone(lake: Lake, tmp_path: Path) -> None:
    lake.append(rows(lake.table, [1]))
    assert lake.place.uri == str(tmp_path / "features" / "drivers")
    assert (tmp_path / "features" / "drivers" / "_delta_log").stat().st_mode & 0o077 == 0
    assert list((tmp_path / "features" / "drivers").glob("_day=2024-03-01/*.parquet"))


def test_another_reader_of_delta_lake_sees_the_rows_under_the_tables_own_names(lake: Lake) -> None:
    lake.append(rows(lake.table, [1, 2], city=["rome", None]))
    table = DeltaTable(lake.place.uri)
    assert table.metadata().partition_columns == ["_day"]
    found = pl.DataFrame(table.scan()).sort("driver_id")
    assert found["city"].to_list() == ["rome", None]
    assert found["_day"].to_list() == [datetime.date(2024, 3, 1)] * 2
    assert found["at"].dtype == pl.Datetime("us", "UTC")
    assert pl.scan_delta(lake.place.uri).select(pl.len()).collect().item() == 2


def test_what_the_log_says_of_a_file_bounds_its_rows_to_the_microsecond(lake: Lake) -> None:
    lake.append(rows(lake.table, [1, 2], NOON_US + np.array([1, 999])))
    said = _statistics(lake)
    assert said["maxValues"]["at"] == "2024-03-01T12:00:00.001Z"
    assert said["minValues"] == {
        "driver_id": 1,
        "at": "2024-03-01T12:00:00.000Z",
        "_arrived": "2024-03-01T12:00:00.000Z",
    }


def _statistics(lake: Lake) -> dict[str, Any]:
    assert lake.place.folder is not None
    newest = sorted((lake.place.folder / "_delta_log").glob("*.json"))[-1]
    lines = [json.loads(line) for line in newest.read_text().splitlines()]
    found: dict[str, Any] = json.loads(
        next(line["add"]["stats"] for line in lines if "add" in line)
    )
    return found


def test_a_column_that_is_added_is_null_in_older_rows_and_a_retired_one_stays(
    tmp_path: Path,
) -> None:
    old = change(None, drivers()).table
    lake = made(tmp_path, old)
    lake.append(rows(old, [1], city=["rome"]))
    wanted = drivers(
        columns={"trips": "int64", "rating": "float32", "city": "string", "taste": "float32[2]"},
        retired=["city"],
    )
    new = change(old, wanted).table
    newer = made(tmp_path, new)
    newer.append(rows(new, [1], NOON_US + 1, first=1, taste=[[1.0, 2.0]]))
    lake.append(rows(old, [2], NOON_US + 2, first=2))  # somebody who has not heard of it
    entities = {"driver_id": [1, 1, 2], "at": [NOON_US, NOON_US + 1, NOON_US + 2]}
    found = history(newer, entities, ["taste", "city"]).frame
    assert found["taste"].to_list() == [None, [1.0, 2.0], None]
    assert found["city"].to_list() == ["rome", None, None]
    assert newer.create() is False
    merged = change(old, dataclasses.replace(old, ttl_s=60.0)).table
    assert made(tmp_path, merged).log().version == newer.log().version


def test_a_history_of_another_table_is_not_taken_over(lake: Lake, tmp_path: Path) -> None:
    other = drivers(columns={"trips": "string"})
    with pytest.raises(Conflict, match="'trips' is of the type"):
        Lake(tmp_path, other).create()


def test_columns_are_added_once_by_many_and_while_others_append(tmp_path: Path) -> None:
    old = change(None, drivers()).table
    lake = made(tmp_path, old)
    wanted = drivers(
        columns={"trips": "int64", "rating": "float32", "city": "string", "more": "bool"}
    )
    new = change(old, wanted).table

    def append(number: int) -> None:
        lake.append(rows(old, [1], first=number))

    with ThreadPoolExecutor(6) as pool:
        done: list[Future[Any]] = [pool.submit(append, number) for number in range(12)]
        done += [pool.submit(Lake(tmp_path, new).create) for _ in range(3)]
        for future in done:
            future.result()
    assert sequences(lake) == list(range(12))
    assert "more" in lake.log().fields
    assert lake.log().version == 13


# --- rows -----------------------------------------------------------------------------------------


def test_rows_of_the_topic_become_rows_of_the_history_with_their_versions(lake: Lake) -> None:
    table = lake.table
    values = {"driver_id": 3, "trips": None, "rating": 0.5, "city": "rome"}
    some = [
        feature_rows.encode(table, RowVersion(NOON_US, (1 << 64) - 2, 5), values),
        feature_rows.deleted(table, RowVersion(NOON_US + 1, (1 << 64) - 1, 6), table.key_bytes(4)),
    ]
    lake.append(frame_of_rows(table, some, NOON_US + 9))
    found = everything(lake)
    assert found["driver_id"].to_list() == [3, 4]
    assert found["_deleted"].to_list() == [False, True]
    assert found["rating"].to_list() == [0.5, None]
    assert as_unsigned(found["_writer"].to_numpy()).tolist() == [(1 << 64) - 2, (1 << 64) - 1]
    assert found["_arrived"].to_physical().to_list() == [NOON_US + 9] * 2
    assert frame_of_rows(table, [], NOON_US).height == 0


@given(st.lists(st.integers(0, 2**64 - 1), min_size=2, max_size=20))
def test_unsigned_numbers_keep_their_order(numbers: list[int]) -> None:
    array = np.array(numbers, np.uint64)
    ordered = as_ordered(array)
    assert as_unsigned(ordered).tolist() == numbers
    assert [numbers[place] for place in np.argsort(ordered)] == sorted(numbers)


VALUES: dict[str, Any] = {
    "trips": st.integers(-(2**63), 2**63 - 1),
    "small": st.integers(-(2**31), 2**31 - 1),
    "rating": st.floats(width=32, allow_nan=False),
    "exact": st.floats(allow_nan=False),
    "good": st.booleans(),
    "seen": st.integers(-(10**15), 10**16),
    "city": st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
    "photo": st.binary(max_size=5),
    "taste": st.lists(st.floats(width=32, allow_nan=False), min_size=3, max_size=3),
}
WIDE = drivers(
    columns={
        "trips": "int64",
        "small": "int32",
        "rating": "float32",
        "exact": "float64",
        "good": "bool",
        "seen": "timestamp",
        "city": "string",
        "photo": "bytes",
        "taste": "float32[3]",
    }
)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.fixed_dictionaries({name: st.none() | each for name, each in VALUES.items()}),
        min_size=1,
        max_size=8,
    )
)
def test_values_of_every_type_come_back_as_they_were(
    tmp_path_factory: pytest.TempPathFactory, given_: list[dict[str, Any]]
) -> None:
    lake = made(tmp_path_factory.mktemp("lake"), WIDE)
    count = len(given_)
    columns = {name: [one[name] for one in given_] for name in VALUES}
    versions = RowVersions.of(NOON_US, 7, np.arange(count))
    lake.append(
        frame_of(WIDE, {"driver_id": list(range(count))}, versions, columns, arrived_us=NOON_US)
    )
    found = history(lake, {"driver_id": range(count), "at": [NOON_US] * count}, list(VALUES)).frame
    for name in VALUES:
        column = found[name]
        back = column.to_physical().to_list() if name == "seen" else column.to_list()
        assert back == columns[name], name


def test_columns_of_polars_are_taken_where_nothing_is_lost(lake: Lake) -> None:
    versions = RowVersions.of([NOON_US] * 2, 7, [0, 1])
    keys = {"driver_id": pl.Series([1, 2], dtype=pl.Int16)}
    good = {
        "trips": pl.Series([1, None], dtype=pl.Int8),
        "rating": pl.Series([1, 2]),
        "city": pl.Series(["a", "b"], dtype=pl.Categorical),
    }
    lake.append(frame_of(lake.table, keys, versions, good, arrived_us=NOON_US))
    assert everything(lake)["city"].to_list() == ["a", "b"]
    bad: dict[str, pl.Series] = {
        "trips": pl.Series([1.5, 2.0]),
        "rating": pl.Series([1e300, 1.0]),
        "city": pl.Series([1, 2]),
    }
    for name, column in bad.items():
        with pytest.raises(Usage, match=name):
            frame_of(lake.table, keys, versions, {**good, name: column}, arrived_us=NOON_US)


BAD_ROWS: dict[str, tuple[dict[str, Any], str]] = {
    "a null key": ({"keys": {"driver_id": [1, None]}}, "row 1 has no 'driver_id'"),
    "a NaN key": ({"keys": {"driver_id": [1, math.nan]}}, "NaN"),
    "a NaN key of polars": ({"keys": {"driver_id": pl.Series([1.0, math.nan])}}, "NaN in row 1"),
    "a text as a key": ({"keys": {"driver_id": ["a", "b"]}}, "type str"),
    "no key": ({"keys": {}}, "missing"),
    "an unknown column": ({"columns": {"trip": [1, 2]}}, "'trip'"),
    "a text in a number": ({"columns": {"trips": [1, "2"]}}, "row 1"),
    "too few values": ({"columns": {"trips": [1]}}, "1 values for 2 rows"),
}


@pytest.mark.parametrize("what", BAD_ROWS)
def test_bad_rows_are_refused_with_their_place(what: str) -> None:
    changes, words = BAD_ROWS[what]
    given_ = {"keys": {"driver_id": [1, 2]}, "columns": {"trips": [1, 2]}, **changes}
    versions = RowVersions.of([NOON_US] * 2, 7, [0, 1])
    with pytest.raises(Usage) as refused:
        frame_of(drivers(), given_["keys"], versions, given_["columns"], arrived_us=NOON_US)
    assert words in str(refused.value)


def test_an_empty_text_is_no_key() -> None:
    with pytest.raises(Usage, match="row 0"):
        versions = RowVersions.of([NOON_US], 7, [0])
        frame_of(pairs(), {"town": [""], "street": [1]}, versions, {}, arrived_us=NOON_US)


def test_what_is_appended_is_the_tables_bounded_and_not_of_the_future(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = rows(lake.table, [1, 2])
    with pytest.raises(Usage, match="no rows are appended"):
        lake.append(good.clear())
    with pytest.raises(Usage) as refused:
        lake.append(good.with_columns(pl.col("trips").cast(pl.Int32), extra=1))
    assert "trips: Int32" in refused.value.why and "extra" in refused.value.why
    ahead_us = SystemClock().wall_ms() * 1_000 + 3 * DAY_US
    with pytest.raises(Usage, match="in the future"):
        lake.append(rows(lake.table, [1], ahead_us))
    monkeypatch.setattr(lakes, "APPEND_ROWS_MAX", 1)
    with pytest.raises(TooLarge):
        lake.append(good)
    assert lake.log().version == 0
    assert lake.place.folder is not None
    assert not list(lake.place.folder.glob("_day=*")), "nothing is half written"


def test_many_append_at_once_and_every_row_is_there_once(lake: Lake) -> None:
    def append(number: int) -> None:
        for each in range(6):
            lake.append(rows(lake.table, [1], first=100 * number + each))

    with ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(append, number) for number in range(4)]:
            future.result()
    assert sequences(lake) == [100 * number + each for number in range(4) for each in range(6)]


def test_a_commit_whose_answer_was_lost_is_not_made_twice(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = LakeLog.commit
    lost = [Conflict("the answer was lost")]

    def commit(self: LakeLog, *given_: Any) -> None:
        real(self, *given_)
        if lost:
            raise lost.pop()

    monkeypatch.setattr(LakeLog, "commit", commit)
    lake.append(rows(lake.table, [1, 2]))
    assert sequences(lake) == [0, 1]


def test_who_is_never_fast_enough_gives_up_in_the_end(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def commit(self: LakeLog, *given_: Any) -> None:
        raise Conflict("others were faster")

    monkeypatch.setattr(LakeLog, "commit", commit)
    monkeypatch.setattr(lakes, "COMMIT_PAUSE_S_MAX", 0.0)
    with pytest.raises(Unavailable, match="faster"):
        lake.append(rows(lake.table, [1]))


# --- erased from ----------------------------------------------------------------------------------


def test_an_erased_key_is_in_no_file_of_the_newest_version(lake: Lake) -> None:
    for day in range(3):
        lake.append(rows(lake.table, [1, 2, 3], NOON_US + day * DAY_US, first=10 * day))
    before = lake.log().version
    lake.keep(before)
    done = lake.erase([2, 99])
    assert (done.rows, done.files, done.kept) == (3, 3, (before,))
    assert everything(lake)["driver_id"].to_list() == [1, 1, 1, 3, 3, 3]
    assert lake.erase([2]).rows == 0
    assert lake.collect(lake.scan(lake.log(before))).height == 9
    lake.release(before)
    assert lake.kept() == ()


def test_erasing_leaves_what_others_append_meanwhile_and_takes_whole_files(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.append(rows(lake.table, [2, 2]))
    lake.append(rows(lake.table, [1, 2], first=10))
    real = LakeLog.commit
    once = [True]

    def commit(self: LakeLog, *given_: Any) -> None:
        if once:
            once.clear()
            lake.append(rows(lake.table, [2, 5], first=20))  # its key comes once more
        real(self, *given_)

    monkeypatch.setattr(LakeLog, "commit", commit)
    assert lake.erase([2]).rows == 4
    assert everything(lake)["driver_id"].to_list() == [1, 5]


def test_erasing_asks_for_keys_of_the_table(lake: Lake) -> None:
    with pytest.raises(Usage):
        lake.erase(["rome"])
    composite = made(lake.place.folder.parents[1], pairs())  # type: ignore[union-attr]
    with pytest.raises(Usage, match="2 parts"):
        composite.erase(["rome"])


# --- what is in the way ---------------------------------------------------------------------------


def test_a_store_that_cannot_hold_a_history_is_refused() -> None:
    with pytest.raises(Usage, match="cannot lie in memory:a"):
        Lake("memory:a", drivers())
    with pytest.raises(Usage, match="ca="):
        Lake("s3://b/p?endpoint=https://h&ca=/c.pem", drivers())


def test_a_folder_that_may_not_be_written_to_is_refused_and_a_missing_file_named(
    lake: Lake, tmp_path: Path
) -> None:
    lake.append(rows(lake.table, [1]))
    assert lake.place.folder is not None
    for path in lake.place.folder.glob("_day=*/*.parquet"):
        path.unlink()
    with pytest.raises(Missing, match="gone"):
        history(lake, {"driver_id": [1], "at": [NOON_US]}, ["trips"])
    (tmp_path / "file").write_text("")
    with pytest.raises((Refused, Full, Unavailable)):
        Lake(tmp_path / "file" / "below", drivers()).create()


def test_a_damaged_file_is_corrupt(lake: Lake) -> None:
    lake.append(rows(lake.table, [1]))
    assert lake.place.folder is not None
    for path in lake.place.folder.glob("_day=*/*.parquet"):
        path.write_bytes(b"PAR1" + b"\0" * 100)
    with pytest.raises(Corrupt):
        history(lake, {"driver_id": [1], "at": [NOON_US]}, ["trips"])


def test_a_feature_of_delta_lake_that_would_hide_deletions_is_refused(lake: Lake) -> None:
    assert lake.place.folder is not None
    protocol = {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": ["deletionVectors"],
        "writerFeatures": ["deletionVectors"],
    }
    commit = lake.place.folder / "_delta_log" / f"{1:020}.json"
    commit.write_text(json.dumps({"protocol": protocol}))
    with pytest.raises(Refused, match="deletionVectors"):
        lake.log()


def _append_in_a_fork(folder: str) -> str:
    try:
        made(Path(folder))
    except Usage as error:
        return error.what
    return "it went on"


def test_a_forked_process_is_told_so_and_does_not_wait_for_ever(lake: Lake, tmp_path: Path) -> None:
    lake.log()
    read, write = os.pipe()
    if not (child := os.fork()):
        os.write(write, _append_in_a_fork(str(tmp_path)).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert "forked" in os.read(read, 1_000).decode()
    os.close(read)
    os.close(write)
