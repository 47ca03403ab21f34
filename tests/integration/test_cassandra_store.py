"""The online store on a real Cassandra: what it refuses to promise, what its errors say, and what
is particular to this engine. What every engine does is in `tests/contract/features`."""

from __future__ import annotations

import itertools
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.features.address import FeaturesAddress
from holdfast.features.online.cassandra import CassandraStore
from holdfast.features.online.opening import open_store
from holdfast.features.online.store import Asked
from holdfast.features.table import Level, Table
from holdfast.system.tasks import WAITED, start_thread
from holdfast.wire.errors import Conflict, HoldfastError, Missing, Refused, Unavailable, Usage
from tests.conftest import require_part
from tests.contract.features.made import DAY_US, deletion, everything, look, newest, now_us, row_of
from tests.servers.cassandra import CassandraServer, cassandra_missing
from tests.waiting import eventually

COLUMNS = {"trips": "int64", "rating": "float32", "city": "string", "blob": "bytes"}
SETTINGS: dict[str, object] = {"commitlog_sync": "periodic", "commitlog_sync_period": "10s"}
_numbers = itertools.count()


def table_of(consistency: str = "strong", name: str = "", **more: object) -> Table:
    name = name or f"t{next(_numbers)}"
    key = {"driver": "string"}
    return Table(name, key=key, columns=COLUMNS, consistency=consistency, **more)  # type: ignore[arg-type]


def opened(address: FeaturesAddress | str) -> CassandraStore:
    made = open_store(address)
    assert isinstance(made, CassandraStore)
    return made


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CassandraServer]:
    require_part(cassandra_missing())
    made = CassandraServer(tmp_path_factory.mktemp("node"))
    try:
        yield made.start()
    finally:
        made.kill()


@pytest.fixture
def store(node: CassandraServer) -> Iterator[CassandraStore]:
    made = opened(f"cassandra://{node.hosts}")
    yield made
    made.close()


def refusal(
    address: FeaturesAddress | str,
    table: Table,
    kind: type[HoldfastError] = Refused,
) -> HoldfastError:
    """What `prepare` says there."""
    made = opened(address)
    try:
        with pytest.raises(kind) as refused:
            made.prepare(table)
    finally:
        made.close()
    assert refused.value.why
    assert refused.value.fix
    return refused.value


# --- what it refuses to promise -------------------------------------------------------------------


def test_a_strong_table_is_refused_where_answers_do_not_wait_for_the_disk(tmp_path: Path) -> None:
    require_part(cassandra_missing())
    loose = CassandraServer(tmp_path, settings={**SETTINGS, "disk_failure_policy": "best_effort"})
    try:
        loose.start()
        address = f"cassandra://{loose.hosts}"
        error = refusal(address, table_of())
        assert "commitlog_sync is periodic" in error.why
        assert "batch" in error.fix
        assert "commitlog_sync" in refusal(address, table_of("bounded: 5s")).why
        with loose.session() as session:
            names = session.execute("SELECT keyspace_name FROM system_schema.keyspaces")
            assert "holdfast_3" not in {row.keyspace_name for row in names}, (
                "something is half made"
            )
        made = opened(address)
        table = table_of("eventual")
        made.prepare(table)
        row = row_of(table, trips=1)
        made.write(table, [row])
        assert newest(made, table, row) == row.data
        made.close()
        loose.kill()
        loose.settings = {"disk_failure_policy": "best_effort"}
        loose.start()
        assert "disk_failure_policy is best_effort" in refusal(address, table_of()).why
    finally:
        loose.kill()


def test_one_copy_on_the_only_node_is_taken_and_told(
    store: CassandraStore, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        store.prepare(table_of())
    assert "as durable as that node's disk" in caplog.text


def test_a_home_that_the_ring_does_not_have_is_refused(node: CassandraServer) -> None:
    error = refusal(f"cassandra://{node.hosts}", table_of(home="mars"))
    assert "'mars'" in error.why
    assert "dc1" in error.why


def test_a_keyspace_that_keeps_nothing_is_refused(node: CassandraServer) -> None:
    made = "CREATE KEYSPACE {}_3 WITH replication = {{'class': '{}', '{}': 1}} {}"
    topology = "NetworkTopologyStrategy"
    with node.session() as session:
        loose = "AND durable_writes = false"
        session.execute(made.format("forgetful", topology, "dc1", loose))
        session.execute(made.format("simple", "SimpleStrategy", "replication_factor", ""))
    address = f"cassandra://{node.hosts}?keyspace="
    assert "durable_writes" in refusal(f"{address}forgetful", table_of()).why
    assert "SimpleStrategy" in refusal(f"{address}simple", table_of("eventual")).why


def test_a_table_that_does_not_repair_what_it_reads_is_refused(
    node: CassandraServer, store: CassandraStore
) -> None:
    table = table_of()
    store.prepare(table)
    with node.session() as session:
        session.execute(f"ALTER TABLE holdfast_3.\"{table.name}\" WITH read_repair = 'NONE'")
    assert "read_repair is NONE" in refusal(f"cassandra://{node.hosts}", table).why
    store.prepare(table_of("eventual", table.name))


def test_a_table_of_somebody_else_is_refused_and_stays(
    node: CassandraServer, store: CassandraStore
) -> None:
    store.prepare(table_of())  # the keyspace is there
    with node.session() as session:
        session.execute("CREATE TABLE holdfast_3.mine (id int PRIMARY KEY, what text)")
        session.execute("INSERT INTO holdfast_3.mine (id, what) VALUES (1, 'kept')")
    address = f"cassandra://{node.hosts}"
    assert "not made by Holdfast" in refusal(address, table_of(name="mine"), Conflict).why
    with pytest.raises(Conflict):
        store.forget(table_of(name="mine"))
    with node.session() as session:
        assert session.execute("SELECT what FROM holdfast_3.mine").one().what == "kept"


# --- errors ---------------------------------------------------------------------------------------


def test_a_data_center_that_is_not_there_is_told_with_those_that_are(
    node: CassandraServer,
) -> None:
    error = refusal(f"cassandra://{node.hosts}?dc=mars", table_of(), Usage)
    assert "dc1" in error.why
    assert "dc=dc1" in error.fix


def test_a_table_that_nobody_has_prepared_is_missing(store: CassandraStore) -> None:
    table = table_of()
    for call in (
        lambda: look(store, table, b"a"),
        lambda: store.write(table, [row_of(table)]),
        lambda: store.scan(table),
    ):
        with pytest.raises(Missing) as missing:
            call()
        assert "apply" in missing.value.fix
    store.forget(table)


def test_a_table_that_was_forgotten_meanwhile_is_missing_and_works_when_it_is_back(
    node: CassandraServer, store: CassandraStore
) -> None:
    table = table_of()
    row = row_of(table, trips=1)
    store.prepare(table)
    store.write(table, [row])
    other = opened(f"cassandra://{node.hosts}")
    other.forget(table)
    with pytest.raises(Missing):
        store.write(table, [row])
    with pytest.raises(Missing):
        newest(store, table, row)
    other.prepare(table)
    assert newest(store, table, row) is None
    store.write(table, [row])
    assert newest(other, table, row) == row.data
    other.close()


def test_servers_that_are_away_are_unavailable_with_what_to_do(tmp_path: Path) -> None:
    port = CassandraServer(tmp_path).port
    error = refusal(f"cassandra://127.0.0.1:{port}", table_of(), Unavailable)
    assert "whether the nodes run" in error.fix


def test_a_scan_that_goes_on_from_nonsense_is_refused(store: CassandraStore) -> None:
    table = table_of()
    store.prepare(table)
    with pytest.raises(Conflict) as refused:
        store.scan(table, b"nonsense")
    assert "anew" in refused.value.fix


# --- what is particular ---------------------------------------------------------------------------


def test_of_rows_of_one_time_the_larger_bytes_stay_although_they_expire(
    store: CassandraStore,
) -> None:
    """Of two cells with one timestamp Cassandra keeps the one that expires later, and one that
    expires at all: so when a row expires does not depend on when it was written."""
    table = table_of(ttl="1h")
    store.prepare(table)
    at_us = now_us()
    large = row_of(table, at_us=at_us, writer=9, trips=9)
    others = [row_of(table, at_us=at_us, writer=writer, trips=1) for writer in range(9)]
    store.write(table, [large])
    begun_s = time.time()
    count = itertools.count()

    def later() -> bool:
        store.write(table, [others[next(count) % len(others)], deletion(table, at_us=at_us)])
        assert newest(store, table, large) == large.data
        return time.time() > begun_s + 2.5  # the server counts in seconds

    eventually(later, "some seconds are over")


def test_a_row_that_expires_is_gone_from_the_server_and_not_only_from_answers(
    node: CassandraServer, store: CassandraStore
) -> None:
    table = table_of(ttl="1s")
    store.prepare(table)
    hours_us = 3_600_000_000
    old, young = row_of(table, "old", now_us() - 26 * hours_us), row_of(table, "young", now_us())
    store.write(table, [old, young])
    with node.session() as session:
        rows = session.execute(f'SELECT key, ttl(row) FROM holdfast_3."{table.name}"')
        found = dict(iter(rows))
    assert set(found) == {young.key}
    assert 24 * 3_600 < found[young.key] <= 25 * 3_600 + 1


def test_deleted_rows_without_a_time_to_live_stay_until_they_are_let_go(
    node: CassandraServer, store: CassandraStore
) -> None:
    table = table_of()
    store.prepare(table)
    gone = [deletion(table, f"old-{number}", at_us=DAY_US) for number in range(30)]
    fresh, kept = deletion(table, "fresh", at_us=now_us()), row_of(table, "kept", DAY_US)
    store.write(table, [*gone, fresh, kept])
    assert len(everything(store, table)) == 32
    assert store.purge(table) == 30
    eventually(lambda: set(everything(store, table)) == {fresh.key, kept.key}, "they are gone")
    late = row_of(table, "old-3", at_us=DAY_US - 1)
    store.write(table, [late])
    assert newest(store, table, late) is None, "what is older stays covered"
    assert store.purge(table) == 0
    assert store.purge(table_of(ttl="1d")) == 0


def test_a_key_that_is_asked_for_often_is_found_at_each_place(store: CassandraStore) -> None:
    table = table_of()
    store.prepare(table)
    row = row_of(table, trips=1)
    store.write(table, [row])
    assert look(store, table, *[row.key] * 100, b"nobody") == [row.data] * 100 + [None]


def test_a_thousand_statements_share_what_may_be_on_the_way(store: CassandraStore) -> None:
    table = table_of()
    store.prepare(table)
    blob = bytes(4_096)  # each goes alone
    written = [row_of(table, f"d{number}", blob=blob, trips=number) for number in range(1_000)]

    def write() -> None:
        assert all(store.write(table, written))

    threads = [start_thread(write, f"write-{number}", WAITED) for number in range(3)]
    for thread in threads:
        thread.result()
    assert look(store, table, *[row.key for row in written]) == [row.data for row in written]


def test_many_processes_prepare_the_same_tables_at_the_same_time(
    node: CassandraServer, store: CassandraStore
) -> None:
    """With one node its own order decides; `test_cassandra_ring` has three."""
    tables = [table_of() for _ in range(3)]
    stores = [opened(f"cassandra://{node.hosts}?keyspace=together") for _ in range(4)]
    threads = [
        start_thread(lambda one=one: [one.prepare(table) for table in tables], "prepare", WAITED)  # type: ignore[misc]
        for one in stores
    ]
    for thread in threads:
        thread.result()
    for table in tables:
        row = row_of(table, trips=1)
        stores[0].write(table, [row])
        assert newest(stores[1], table, row) == row.data
    for one in stores:
        one.close()


def test_eventual_reads_of_a_strong_table_are_answered(store: CassandraStore) -> None:
    table = table_of()
    store.prepare(table)
    row = row_of(table, trips=1)
    store.write(table, [row])
    assert store.read([Asked(table, [row.key], Level.EVENTUAL)]) == [[row.data]]


# --- processes ------------------------------------------------------------------------------------


def test_a_forked_process_does_not_use_the_store_of_its_parent_and_opens_its_own(
    node: CassandraServer, store: CassandraStore
) -> None:
    table = table_of()
    store.prepare(table)
    row = row_of(table, trips=1)
    store.write(table, [row])
    child = os.fork()
    if not child:
        ended = 1
        try:
            with pytest.raises(Usage, match="forked"):
                newest(store, table, row)
            store.close()
            own = opened(f"cassandra://{node.hosts}")
            ended = 0 if newest(own, table, row) == row.data else 2
            own.close()
        finally:
            os._exit(ended)
    assert newest(store, table, row) == row.data
    assert os.waitpid(child, 0)[1] == 0
    assert newest(store, table, row) == row.data


FORKS = """
import os, sys
from holdfast.features.online.opening import open_store
store = open_store(sys.argv[1])
assert not store.status().trouble, store.status()
child = os.fork()
if child:
    assert os.waitpid(child, 0)[1] == 0
    assert not store.status().trouble, store.status()
"""


def test_a_process_and_its_fork_end_in_order_without_closing(node: CassandraServer) -> None:
    """Both run what the driver wants done at their end."""
    done = subprocess.run(
        [sys.executable, "-c", FORKS, f"cassandra://{node.hosts}"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr


def test_closing_while_calls_are_under_way_ends_them(node: CassandraServer) -> None:
    made = opened(f"cassandra://{node.hosts}")
    table = table_of()
    made.prepare(table)
    written = [row_of(table, f"d{number}", blob=bytes(50_000)) for number in range(300)]
    begun = threading.Event()

    def write() -> None:
        while True:
            begun.set()
            made.write(table, written)

    thread = start_thread(write, "write", WAITED)
    assert begun.wait(60)
    made.close()
    assert thread.join(60), "the call hangs"
    with pytest.raises(HoldfastError):
        thread.result()
