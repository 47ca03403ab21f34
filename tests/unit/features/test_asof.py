"""What was known then: the same as a slow and obvious program says, and as DuckDB's ASOF JOIN."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.features import Table
from holdfast.features.history import Lake, history
from holdfast.features.history.entities import AHEAD_S_MAX
from holdfast.features.history.joining import TableJoin
from holdfast.features.history.newest import HistoryRows, Timeline
from holdfast.system.clock import SystemClock
from holdfast.wire.errors import Missing, Usage
from tests.unit.features.history_made import (
    DAY_US,
    HOUR_US,
    NOON_US,
    drivers,
    frame_of_facts,
    made,
    pairs,
    rows,
)
from tests.unit.features.reference import Fact, known_then

UTC = datetime.UTC
NUMBERS = itertools.count()
MANY = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


def times(at_us: Sequence[int] | np.ndarray[Any, Any]) -> pl.Series:
    return pl.Series("at", np.asarray(at_us, np.int64)).cast(pl.Datetime("us", "UTC"))


def asked(ids: Sequence[int], at_us: Sequence[int]) -> pl.DataFrame:
    return pl.DataFrame({"driver_id": pl.Series(list(ids), dtype=pl.Int64), "at": times(at_us)})


# --- beside a slow and obvious program ------------------------------------------------------------

# Few keys and few times, so that everything meets: the hours of some days, and microseconds around.
STEPS = st.builds(
    lambda hours, micros: NOON_US + hours * HOUR_US + micros, st.integers(0, 80), st.integers(-1, 1)
)
FACTS = st.lists(
    st.builds(
        Fact,
        key=st.tuples(st.integers(0, 2)),
        at_us=STEPS,
        arrived_us=STEPS,
        writer=st.sampled_from([0, 1, (1 << 63) + 5, (1 << 64) - 1]),
        sequence=st.integers(0, 3),
        value=st.one_of(st.none(), st.integers(-5, 5)),
        deleted=st.booleans(),
    ),
    max_size=30,
    # One version is one row: nobody writes two.
    unique_by=lambda fact: (fact.key, fact.version),
)
ASKED = st.lists(st.tuples(st.integers(0, 3), STEPS), min_size=1, max_size=12)
TTLS = st.sampled_from([None, "1h", "1d", "3d"])


@MANY
@given(FACTS, ASKED, TTLS, st.booleans(), st.integers(0, 3))
def test_the_answers_are_those_of_a_slow_and_obvious_program(
    tmp_path: Path,
    facts: list[Fact],
    entities: list[tuple[int, int]],
    ttl: str | None,
    arrived: bool,
    cut: int,
) -> None:
    table = drivers(ttl=ttl)
    lake = made(tmp_path / str(next(NUMBERS)), table)
    for part in (facts[:: cut + 1], [f for n, f in enumerate(facts) if n % (cut + 1)]):
        if part:
            lake.append(frame_of_facts(table, part))
    given_ = asked([key for key, _ in entities], [at_us for _, at_us in entities])
    found = history(lake, given_, ["trips", "drivers.at"], arrived=arrived).frame
    expected = [
        known_then(facts, (key,), at_us, ttl_us(table), arrived=arrived) for key, at_us in entities
    ]
    assert found["trips"].to_list() == [fact and fact.value for fact in expected]
    assert found["drivers.at"].to_physical().to_list() == [fact and fact.at_us for fact in expected]


@MANY
@given(FACTS, ASKED, TTLS, st.booleans(), st.sampled_from([1, 2, 5]))
def test_a_history_that_is_read_in_small_parts_gives_the_same(
    tmp_path: Path,
    facts: list[Fact],
    entities: list[tuple[int, int]],
    ttl: str | None,
    arrived: bool,
    rows_max: int,
) -> None:
    table = pairs(ttl=ttl)
    lake = made(tmp_path / str(next(NUMBERS)), table)
    keyed = [Fact((f"t{f.key[0]}", 7), *_rest(f)) for f in facts]
    if keyed:
        lake.append(frame_of_facts(table, keyed))
    keys = pl.DataFrame(
        {"town": [f"t{key}" for key, _ in entities], "street": [7] * len(entities)},
        schema={"town": pl.String, "street": pl.Int32},
    )
    join = TableJoin(lake, lake.log(), ["trips"], arrived=arrived, memory_bytes=1)
    join._rows_max = rows_max
    found = join.run(keys, np.array([at_us for _, at_us in entities], np.int64))
    expected = [
        known_then(keyed, (f"t{key}", 7), at_us, ttl_us(table), arrived=arrived)
        for key, at_us in entities
    ]
    assert found["trips"].to_list() == [fact and fact.value for fact in expected]


def _rest(fact: Fact) -> tuple[Any, ...]:
    return (fact.at_us, fact.arrived_us, fact.writer, fact.sequence, fact.value, fact.deleted)


def ttl_us(table: Table) -> int | None:
    return None if table.ttl_s is None else int(table.ttl_s * 1e6)


@settings(max_examples=200)
@given(
    st.lists(st.tuples(*[st.integers(0, 3)] * 4, st.integers(0, 9)), max_size=30),
    st.booleans(),
    st.sampled_from([1, 2**60]),
    st.integers(0, 4),
)
def test_the_rule_on_arrays_holds_for_every_width_and_wherever_rows_are_cut(
    given_: list[tuple[int, int, int, int, int]], arrived: bool, scale: int, cut: int
) -> None:
    # Beyond 2^63 a key's number and a time have no room in one number.
    columns = np.array(given_, np.int64).reshape(-1, 5).T
    code, at_us, writer, sequence, known_us = columns
    at_us, known_us = at_us * scale, known_us // 2 * scale

    def some(places: Any) -> HistoryRows:
        known = known_us[places] if arrived else None
        return HistoryRows(code[places], at_us[places], writer[places], sequence[places], known)

    ask_code = np.repeat(np.arange(4), 6)
    ask_at = np.tile(np.arange(6), 4) * scale
    facts = [
        Fact((int(c),), int(a), int(k), int(w), int(s), number)
        for number, (c, a, w, s, k) in enumerate(
            zip(code, at_us, writer, sequence, known_us, strict=True)
        )
    ]

    def check(found: Any, places: Any, from_us: int) -> None:
        for key, at, row in zip(ask_code.tolist(), ask_at.tolist(), found.tolist(), strict=True):
            if at < from_us:
                continue
            expected = known_then(facts, (key,), at, arrived=arrived)
            told = None if row < 0 else facts[places[row]].version
            assert told == (expected and expected.version)

    whole = np.arange(len(facts))
    check(Timeline(some(whole), 4).newest(ask_code, ask_at), whole, 0)
    early, late = whole[at_us < cut * scale], whole[at_us >= cut * scale]
    left = early[Timeline(some(early), 4).remaining(cut * scale)]
    both = np.concatenate([left, late])
    check(Timeline(some(both), 4).newest(ask_code, ask_at), both, cut * scale)
    if not arrived:
        assert len(left) == len(set(code[early].tolist())), "one row of a key is enough"


# --- beside DuckDB --------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_duckdbs_asof_join_says_the_same(tmp_path: Path, seed: int) -> None:
    duckdb = pytest.importorskip("duckdb")
    chance = np.random.default_rng(seed)
    table = drivers()
    lake = made(tmp_path, table)
    for first in range(0, 20_000, 5_000):
        ids = chance.integers(0, 300, 5_000)
        # Microseconds are enough that no two rows of a key have one time.
        at_us = NOON_US + chance.integers(0, 10 * DAY_US, 5_000)
        lake.append(rows(table, ids.tolist(), at_us, first=first))
    ids = chance.integers(0, 320, 3_000)
    at_us = NOON_US + chance.integers(-DAY_US, 11 * DAY_US, 3_000)
    entities = asked(ids.tolist(), at_us.tolist()).with_row_index("row")
    mine = history(lake, entities, ["trips"]).frame
    entities.write_parquet(tmp_path / "entities.parquet")
    lake.collect(lake.scan(lake.log())).write_parquet(tmp_path / "history.parquet")
    theirs = duckdb.sql(
        f"""SELECT row, trips FROM '{tmp_path}/entities.parquet' e
        ASOF LEFT JOIN '{tmp_path}/history.parquet' h
        ON e.driver_id = h.driver_id AND e.at >= h.at ORDER BY row"""
    ).fetchall()
    assert [trips for _, trips in theirs] == mine["trips"].to_list()


# --- single rules ---------------------------------------------------------------------------------


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    yield made(tmp_path, drivers(ttl="1d"))


def test_a_row_is_there_until_it_is_exactly_as_old_as_its_time_to_live(lake: Lake) -> None:
    lake.append(rows(lake.table, [1]))
    ages = [0, DAY_US - 1, DAY_US, -1]
    found = history(lake, asked([1] * 4, [NOON_US + age for age in ages]), ["trips"])
    assert found.frame["trips"].to_list() == [0, 0, None, None]


def test_a_correction_of_the_same_event_counts_from_its_arrival_on(lake: Lake) -> None:
    facts = [
        Fact((1,), NOON_US, NOON_US, 1, 1, 10),
        Fact((1,), NOON_US, NOON_US + HOUR_US, 1, 2, 11),
        Fact((1,), NOON_US - HOUR_US, NOON_US + 2 * HOUR_US, 9, 9, 12),  # late and older
    ]
    lake.append(frame_of_facts(lake.table, facts))
    entities = asked([1] * 3, [NOON_US, NOON_US + HOUR_US, NOON_US + 3 * HOUR_US])
    assert history(lake, entities, ["trips"]).frame["trips"].to_list() == [11, 11, 11]
    then = history(lake, entities, ["trips"], arrived=True)
    assert then.frame["trips"].to_list() == [10, 11, 11]


def test_what_was_before_a_deletion_does_not_come_back_and_what_follows_it_is_there(
    lake: Lake,
) -> None:
    facts = [
        Fact((1,), NOON_US, NOON_US, 1, 1, 10),
        Fact((1,), NOON_US + HOUR_US, NOON_US + HOUR_US, (1 << 64) - 1, 1, None, deleted=True),
        Fact((1,), NOON_US + 2 * HOUR_US, NOON_US + 2 * HOUR_US, 1, 2, 12),
    ]
    lake.append(frame_of_facts(lake.table, facts))
    hours = asked([1] * 3, [NOON_US + hour * HOUR_US for hour in range(3)])
    assert history(lake, hours, ["trips"]).frame["trips"].to_list() == [10, None, 12]


def test_several_tables_are_joined_each_by_its_own_key_under_the_names_that_were_asked(
    tmp_path: Path,
) -> None:
    first, second = made(tmp_path), made(tmp_path, pairs())
    first.append(rows(first.table, [1, 2], city=["rome", "oslo"]))
    second.append(
        frame_of_facts(
            second.table,
            [Fact((town, 7), NOON_US, NOON_US, 1, 1, n) for n, town in enumerate(["a", "b"])],
        )
    )
    entities = asked([2, 1, 2], [NOON_US] * 3).with_columns(
        origin=pl.Series(["b", "a", "c"]), street=pl.lit(7), note=pl.Series(["x", "y", "z"])
    )
    found = history(
        [first, second],
        entities,
        ["pairs.trips", "city"],
        keys={"pairs": {"town": "origin"}},
    )
    assert found.frame.columns == [*entities.columns, "pairs.trips", "city"]
    assert found.frame["pairs.trips"].to_list() == [1, 0, None]
    assert found.frame["city"].to_list() == ["oslo", "rome", "oslo"]
    assert found.versions == {"drivers": 1, "pairs": 1}


def test_frames_of_polars_and_pandas_and_mappings_are_told_the_same(lake: Lake) -> None:
    pandas = pytest.importorskip("pandas")
    lake.append(rows(lake.table, [1, 2, 3]))
    moments = [datetime.datetime(2024, 3, 1, hour, tzinfo=UTC) for hour in (11, 13, 14)]
    plain = {"driver_id": [1, 2, 3], "at": moments, "note": ["a", None, "c"]}
    micros = [int(moment.timestamp()) * 1_000_000 for moment in moments]
    given_ = [
        plain,
        pl.DataFrame(plain),
        pl.DataFrame(plain).lazy(),
        pandas.DataFrame(plain),
        {**plain, "at": np.array(micros).view("M8[us]")},
    ]
    digests = {history(lake, each, ["trips"]).digest for each in given_}
    assert len(digests) == 1
    found = history(lake, pandas.DataFrame(plain), ["trips"])
    assert found.frame["trips"].to_list() == [None, 1, 2]
    for same in ({**plain, "at": micros}, {"driver_id": np.array([1, 2, 3]), "at": micros}):
        assert history(lake, same, ["trips"]).frame["trips"].to_list() == [None, 1, 2]
    one = history(lake, {"driver_id": [1, 2, 3]}, ["trips"], at=moments[1])
    assert one.frame["trips"].to_list() == [0, 1, 2]


def test_an_older_version_gives_what_it_gave_bit_for_bit(lake: Lake) -> None:
    lake.append(rows(lake.table, [1, 2]))
    entities = asked([1, 2, 3], [NOON_US + 1] * 3)
    first = history(lake, entities, ["trips", "rating", "city"])
    moment = datetime.datetime.fromtimestamp(lake.log().committed_s() + 0.001, UTC)
    lake.append(rows(lake.table, [1, 3], first=50))
    second = history(lake, entities, ["trips", "rating", "city"])
    assert second.digest != first.digest
    for as_of in (first.versions, first.versions["drivers"], moment, {"drivers": moment}):
        again = history(lake, entities, ["trips", "rating", "city"], as_of=as_of)
        assert (again.digest, again.versions) == (first.digest, first.versions)
    with pytest.raises(Missing, match="99"):
        history(lake, entities, ["trips"], as_of=99)
    with pytest.raises(Usage, match="without its zone"):
        history(lake, entities, ["trips"], as_of=datetime.datetime(2024, 1, 1))


def test_columns_come_as_arrays_and_as_tensors_with_a_digest_of_their_values(
    tmp_path: Path,
) -> None:
    table = drivers(columns={"trips": "int64", "taste": "float32[2]", "seen": "timestamp"})
    lake = made(tmp_path, table)
    taste = np.array([[1, 2], [3, 4]], np.float32)
    lake.append(rows(table, [1, 2], taste=taste, seen=[NOON_US, None]))
    entities = asked([2, 1, 3], [NOON_US] * 3).with_columns(late=pl.Series([True, False, True]))
    found = history(lake, entities, ["trips", "taste", "seen"])
    values, present = found.numpy("taste")
    assert present.tolist() == [True, True, False]
    assert values[:2].tolist() == [[3, 4], [1, 2]] and np.isnan(values[2]).all()
    seen, present = found.numpy("seen")
    assert present.tolist() == [False, True, False] and np.isnat(seen[0])
    data = found.dataset("late", x=["trips", "taste"], fill={"trips": -1, "taste": 0})
    assert [part.tolist() for part in data[2]] == [[-1.0, 0.0, 0.0], 1]
    assert len(data) == 3
    same = found.dataset("late", x=["trips", "taste"], fill={"trips": -1, "taste": 0})
    other = found.dataset("late", x=["trips", "taste"], fill=0.0)
    assert facts_of(same) == facts_of(data) != facts_of(other)
    with pytest.raises(Usage, match="no value for 1 of 3"):
        found.dataset("late", x=["trips"])
    with pytest.raises(Usage, match="a tensor has numbers"):
        found.dataset("late", x=["seen"])


def facts_of(data: Any) -> dict[str, str]:
    facts: dict[str, str] = data.facts
    assert all(digest.startswith("sha256:") for digest in facts.values())
    return facts


# --- what is refused ------------------------------------------------------------------------------


def in_seconds(ahead_s: float) -> int:
    return int(SystemClock().wall_ms() * 1_000 + ahead_s * 1e6)


GOOD = {"driver_id": [1], "at": [NOON_US]}
BAD: dict[str, tuple[Any, list[str], str]] = {
    "no entity": ({"driver_id": [], "at": []}, ["trips"], "no entities"),
    "no frame": ([1, 2], ["trips"], "no list"),
    "no time": ({"driver_id": [1]}, ["trips"], "no column 'at'"),
    "a null time": ({"driver_id": [1, 2], "at": [NOON_US, None]}, ["trips"], "row 1"),
    "a naive time": (
        {"driver_id": [1], "at": [datetime.datetime(2024, 1, 1)]},
        ["trips"],
        "Datetime",
    ),
    "no key": ({"driver": [1], "at": [NOON_US]}, ["trips"], "no column 'driver_id'"),
    "a NaN key": ({"driver_id": [1.0, float("nan")], "at": [NOON_US] * 2}, ["trips"], "Float64"),
    "a null key": ({"driver_id": [1, None], "at": [NOON_US] * 2}, ["trips"], "row 1 has no"),
    "a text as a key": ({"driver_id": ["1"], "at": [NOON_US]}, ["trips"], "String"),
    "an unknown column": (GOOD, ["trip"], "'trip'"),
    "an unknown table": (GOOD, ["driver.trips"], "no table 'driver'"),
    "no columns": (GOOD, [], "no columns"),
    "a column twice": (GOOD, ["trips", "trips"], "twice"),
    "a column that is theirs": ({**GOOD, "trips": [1]}, ["trips"], "already"),
    "different lengths": ({"driver_id": [1], "at": [NOON_US] * 2}, ["trips"], "lengths"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_questions_are_refused_with_what_is_wrong(lake: Lake, what: str) -> None:
    entities, columns, words = BAD[what]
    with pytest.raises(Usage, match=words):
        history(lake, entities, columns)


def test_a_time_that_has_not_come_is_refused(lake: Lake) -> None:
    late = asked([1], [in_seconds(AHEAD_S_MAX + 60)])
    with pytest.raises(Usage, match="from now"):
        history(lake, late, ["trips"])
    history(lake, asked([1], [in_seconds(0)]), ["trips"])


def test_a_nan_is_named_by_its_row(lake: Lake) -> None:
    entities = {"driver_id": [1.0, float("nan")], "at": [NOON_US] * 2}
    with pytest.raises(Usage, match="row 1"):
        history(lake, entities, ["trips"])
