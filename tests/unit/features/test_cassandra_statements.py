"""What is said to Cassandra, and when a row expires there: without a server."""

from __future__ import annotations

import io
import random
from collections.abc import Callable
from typing import Any

import pytest
from cassandra.protocol import BatchMessage, ExecuteMessage
from cassandra.query import BatchType
from hypothesis import given
from hypothesis import strategies as st

from holdfast.features import rows
from holdfast.features.online.cassandra import expiry, promises, statements
from holdfast.features.rows import RowVersion
from holdfast.features.table import Level, Table
from holdfast.wire.errors import Refused, Usage

TIMES_US = st.integers(-(2**62), 2**62)
DAY_S = 86_400


def table_of(ttl: str | None = None, **more: Any) -> Table:
    return Table("drivers", key="driver", columns={"trips": "int64"}, ttl=ttl, **more)


def data_of(at_us: int, writer: int = 0, sequence: int = 0) -> bytes:
    return rows.deleted(table_of(), RowVersion(at_us, writer, sequence), b"a").data


# --- names and routes -----------------------------------------------------------------------------


def test_there_is_one_keyspace_for_each_number_of_copies() -> None:
    assert statements.keyspace_of("holdfast", 3) == "holdfast_3"
    assert statements.copies_of("holdfast", "holdfast_3") == 3
    for other in ("holdfast", "holdfast_", "holdfast_x", "other_3", "holdfast_3_3", "holdfast_³"):
        assert statements.copies_of("holdfast", other) is None
    assert len(statements.keyspace_of("k" * 46, 9)) == statements.NAME_CHARACTERS_MAX
    with pytest.raises(Usage, match="too long"):
        statements.keyspace_of("k" * 47, 3)


def test_a_name_that_means_something_in_cql_is_only_a_name() -> None:
    for text in statements.statements("holdfast_3", "select"):
        assert '"holdfast_3"."select"' in text


def test_the_name_of_a_data_center_cannot_end_its_quotes() -> None:
    text = statements.create_keyspace("holdfast_3", {"o'hare": 3, "eu": 2})
    assert "{'class': 'NetworkTopologyStrategy', 'eu': 2, 'o''hare': 3}" in text


def test_a_strong_table_is_read_and_written_by_majorities_of_the_same_copies() -> None:
    for table, route in (
        (table_of(), ("QUORUM", None)),
        (table_of(home="eu"), ("LOCAL_QUORUM", "eu")),
        (table_of(consistency="bounded: 5s"), ("QUORUM", None)),
    ):
        assert statements.route_of(table, table.write_level) == route
        assert statements.route_of(table, table.read_level) == route
        assert statements.route_of(table, Level.EVENTUAL) == ("ONE", None)
    table = table_of(consistency="eventual", home="eu")
    assert statements.route_of(table, table.write_level) == ("ONE", None)


# --- copies ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("copies", "nodes", "home", "takes"),
    [
        (3, {"eu": 3}, None, True),
        (3, {"eu": 5}, "eu", True),
        (5, {"eu": 4}, None, True),
        (3, {"eu": 1}, None, True),  # a ring of one node, which says so
        (3, {"eu": 2}, None, False),
        (2, {"eu": 3}, None, False),
        (1, {"eu": 3}, None, False),
        (3, {"eu": 3, "us": 1}, "eu", True),
        (3, {"eu": 3, "us": 1}, "us", False),
        (3, {"eu": 1, "us": 1}, "us", False),
        (3, {"eu": 2, "us": 1}, None, True),
    ],
)
def test_a_strong_table_needs_three_copies_where_it_is_at_home(
    copies: int, nodes: dict[str, int], home: str | None, takes: bool
) -> None:
    table = table_of(copies=copies, home=home)
    made = statements.replication_for(copies, nodes)
    if takes:
        promises.check_copies(table, made, nodes)
    else:
        with pytest.raises(Refused) as refused:
            promises.check_copies(table, made, nodes)
        assert "majority" in refused.value.why
        assert refused.value.fix
    promises.check_copies(table_of(copies=copies, home=home, consistency="eventual"), made, nodes)


def test_a_home_that_is_no_data_center_is_refused_with_those_that_are() -> None:
    promises.check_home(table_of(home="eu"), {"eu": 3})
    promises.check_home(table_of(), {"eu": 3})
    with pytest.raises(Refused) as refused:
        promises.check_home(table_of(home="mars"), {"eu": 3, "us": 3})
    assert "eu, us" in refused.value.why


# --- time -----------------------------------------------------------------------------------------


@given(TIMES_US)
def test_the_timestamp_of_a_cell_is_the_time_of_the_event(at_us: int) -> None:
    assert statements.timestamp_of(data_of(at_us)) == at_us


def test_the_least_time_is_none_that_cassandra_has_no_number_for() -> None:
    assert statements.timestamp_of(data_of(-(2**63))) == -(2**63) + 1


@pytest.mark.parametrize("ttl", ["1s", "90s", "1d", "7d", "365d"])
def test_servers_keep_a_row_longer_than_anybody_may_read_it(ttl: str) -> None:
    table = table_of(ttl)
    life_s = statements.life_of(table)
    assert life_s is not None
    assert table.ttl_s is not None
    assert life_s >= table.ttl_s + statements.CLOCKS_S
    assert life_s >= statements.DELETED_KEPT_S


def test_a_row_without_an_end_has_none_in_cassandra() -> None:
    for table in (table_of(), table_of("7000d")):
        assert statements.life_of(table) is None
        assert statements.expiry_of(0, None) == (None, 0)
        assert statements.ttl_left(statements.FOR_EVER, 1) == 0


@given(TIMES_US, st.sampled_from(["1s", "1d", "30d", "6000d"]))
def test_when_a_row_expires_depends_on_its_event_and_on_nothing_else(at_us: int, ttl: str) -> None:
    """And is never earlier than that of an older row."""
    life_s = statements.life_of(table_of(ttl))
    assert life_s is not None
    found = statements.expiry_of(at_us, life_s)
    assert found.clock_s is not None
    assert 0 <= found.clock_s < 2**32
    assert 1 <= found.ttl_s <= statements.TTL_S_MAX
    ends_s = found.clock_s + found.ttl_s
    assert ends_s <= statements.EXPIRES_S_MAX
    if 0 <= at_us // 1_000_000 <= statements.EXPIRES_S_MAX - life_s:
        assert ends_s == at_us // 1_000_000 + life_s
    before = statements.expiry_of(at_us - 1, life_s)
    assert before.clock_s is not None
    assert before.clock_s + before.ttl_s <= ends_s


def test_servers_that_take_no_clock_are_told_what_is_left() -> None:
    found = statements.expiry_of(1_000_000 * 1_700_000_000, DAY_S)
    assert statements.ttl_left(found, 1_700_000_000) == DAY_S
    assert statements.ttl_left(found, 1_700_000_000 + DAY_S - 5) == 5
    assert statements.ttl_left(found, 1_800_000_000) == 1
    assert statements.ttl_left(found, -(2**40)) == statements.TTL_S_MAX


@given(TIMES_US, st.integers(-2, 2))
def test_a_row_is_too_old_as_soon_as_its_time_to_live_is_over(now_us: int, near: int) -> None:
    oldest = statements.oldest(table_of("60s"), now_us)
    at_us = now_us - 60_000_000 + near
    assert (data_of(at_us) < oldest) == (at_us + 60_000_000 <= now_us)
    assert not data_of(at_us) < statements.oldest(table_of(), now_us)


def test_at_the_ends_of_time_something_is_too_old_or_nothing() -> None:
    assert statements.oldest(table_of("1s"), -(2**63)) == bytes(8)
    assert statements.oldest(table_of("1s"), 2**63) == (2**64 - 1_000_000 + 1).to_bytes(8, "big")


# --- what goes together ---------------------------------------------------------------------------


def test_batches_have_every_row_once_and_are_as_small_as_servers_like_them() -> None:
    chance = random.Random(7)
    for _ in range(200):
        sizes = [int(chance.paretovariate(0.7) * 50) for _ in range(chance.randrange(60))]
        places = list(range(len(sizes)))
        chance.shuffle(places)
        made = list(statements.batches(places, sizes))
        assert [place for batch in made for place in batch] == places
        for batch in made:
            total = sum(sizes[place] for place in batch)
            assert len(batch) <= statements.ROWS_A_BATCH_MAX
            assert total <= statements.BYTES_A_BATCH_MAX or len(batch) == 1
    assert list(statements.batches([], [])) == []


def test_chunks_have_every_key_once() -> None:
    for count in (0, 1, 31, 32, 33, 100):
        made = list(statements.chunks(range(count)))
        assert [place for chunk in made for place in chunk] == list(range(count))
        assert all(0 < len(chunk) <= statements.KEYS_A_STATEMENT_MAX for chunk in made)


# --- the clock that a write brings along ----------------------------------------------------------


def execute(timestamp: int | None) -> ExecuteMessage:
    return ExecuteMessage(b"id", [b"\0" * 8, b"\0" * 4, b"row"], 4, None, timestamp=timestamp)


def batch(timestamp: int | None) -> BatchMessage:
    queries = [(True, b"id", [b"\0" * 8, b"row"]), (True, b"id", [b"\1" * 8, b"row"])]
    return BatchMessage(BatchType.UNLOGGED, queries, 4, None, timestamp)


def batch_in_a_keyspace(timestamp: int | None) -> BatchMessage:
    """As the driver makes one of statements that have a keyspace: it comes behind the flags."""
    made = batch(timestamp)
    made.keyspace = "holdfast_3"
    return made


def sent(message: Any) -> bytes:
    message.result_metadata_id = b"meta"
    encoded: bytes = expiry.ClockedProtocol.encode_message(message, 7, 5, None, False)
    return encoded


@pytest.mark.parametrize("make", [execute, batch])
@pytest.mark.parametrize("timestamp", [None, 99])
def test_a_clock_is_one_more_field_and_one_more_flag(
    make: Callable[[int | None], Any], timestamp: int | None
) -> None:
    plain, clocked = make(timestamp), make(timestamp)
    if make is batch:
        clocked = batch_in_a_keyspace(timestamp)
    clocked.custom_payload = {"holdfast.clock": (1_700_000_000).to_bytes(4, "big")}
    before, after = sent(plain), sent(clocked)
    body, longer = before[9:], after[9:]
    assert len(longer) == len(body) + 4
    assert int.from_bytes(after[5:9], "big") == len(longer)
    assert longer[-4:] == (1_700_000_000).to_bytes(4, "big")
    changed = [n for n, (one, other) in enumerate(zip(body, longer, strict=False)) if one != other]
    assert len(changed) == 1
    assert (body[changed[0]], longer[changed[0]]) == (0, 1)
    # Sent again, as a second attempt is: the message is what it was.
    assert sent(clocked) == after
    assert before[1] == after[1], "no payload is announced"


def test_a_message_without_a_clock_is_as_the_driver_makes_it() -> None:
    message = execute(5)
    message.result_metadata_id = b"meta"
    body = io.BytesIO()
    message.send_body(body, 5)
    assert sent(execute(5))[9:] == body.getvalue()


def test_only_protocols_of_cassandra_itself_take_a_clock() -> None:
    assert [version for version in (3, 4, 5, 6, 65, 66) if expiry.takes_clock(version)] == [5, 6]
