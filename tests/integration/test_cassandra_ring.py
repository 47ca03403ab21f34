"""Strong and eventual tables in a ring of three, whose nodes are killed, stopped, emptied, added
and replaced. What is broken on purpose is found."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from cassandra import ConsistencyLevel

from holdfast.features import rows
from holdfast.features.online.cassandra import CassandraStore, statements
from holdfast.features.online.opening import open_store
from holdfast.features.online.store import Asked
from holdfast.features.rows import Row
from holdfast.features.table import Level, Table
from holdfast.system.tasks import WAITED, start_thread
from holdfast.wire.errors import HoldfastError, RetryError, TimedOut, Unavailable
from tests.conftest import require_part
from tests.contract.features.made import DAY_US, deletion, look, newest, row_of
from tests.servers.cassandra import CassandraRing, CassandraServer, cassandra_missing
from tests.servers.linearizable import History, check, linearizable_missing
from tests.waiting import eventually

pytestmark = pytest.mark.engines
COLUMNS = {"trips": "int64", "rating": "float32", "city": "string"}
CLIENTS = 6
KEYS = ("a", "b", "c")
# Until a ring knows that a node is away, and when it has sent it what it missed.
SLOW_S = 240.0
_numbers = itertools.count()


def table_of(consistency: str = "strong", **more: Any) -> Table:
    key = {"driver": "string"}
    return Table(f"t{next(_numbers)}", key=key, columns=COLUMNS, consistency=consistency, **more)


@pytest.fixture(scope="module")
def ring(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CassandraRing]:
    """Without hints: what a node has missed it gets by reads and repairs alone."""
    require_part(cassandra_missing())
    settings = {"hinted_handoff_enabled": False}
    with CassandraRing(tmp_path_factory.mktemp("ring"), settings=settings) as made:
        yield made


@pytest.fixture
def whole(ring: CassandraRing) -> Iterator[CassandraRing]:
    """The ring, for a test that disturbs it; all its nodes run before and after."""
    yield ring
    for node in ring.nodes:
        if node.process is None:
            node.start()
        node.resume()
    ring.wait_whole()


@pytest.fixture
def store(ring: CassandraRing) -> Iterator[CassandraStore]:
    made = opened(ring)
    eventually(lambda: not made.status().trouble, "the ring is well", SLOW_S)
    yield made
    made.close()


def opened(ring: CassandraRing) -> CassandraStore:
    made = open_store(f"cassandra://{ring.hosts}")
    assert isinstance(made, CassandraStore)
    return made


@contextmanager
def clients(work: Callable[[int, threading.Event], None], count: int = CLIENTS) -> Iterator[None]:
    """So many threads that work until the block ends."""
    over = threading.Event()
    threads = [
        start_thread(lambda number=number: work(number, over), f"client-{number}", WAITED)  # type: ignore[misc]
        for number in range(count)
    ]
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.result()


# --- one register ---------------------------------------------------------------------------------


class Registers:
    """Clients of some registers, with many ties and late writes, and what they were told."""

    def __init__(self, stores: Sequence[CassandraStore], table: Table, seed: int) -> None:
        self.history = History()
        self._stores = stores
        self._table = table
        self._seed = seed
        self._begun_s = time.monotonic()
        self._base_us = DAY_US if table.ttl_s is None else time.time_ns() // 1_000

    def work(self, client: int, over: threading.Event) -> None:
        chance = random.Random(f"{self._seed} {client}")
        store = self._stores[client % len(self._stores)]
        for count in itertools.count():
            if over.is_set():
                return
            keys = chance.sample(KEYS, chance.choice((1, 1, 2)))
            if chance.random() < 0.5:
                made = [self._row(chance, key, 10 * count + client) for key in keys]
                self._write(store, client, keys, made)
            else:
                self._read(store, client, keys)

    def _row(self, chance: random.Random, key: str, sequence: int) -> Row:
        """Some of one time, some late, some deletions."""
        ticks = int(20 * (time.monotonic() - self._begun_s)) - chance.choice((0, 0, 0, 1, 5))
        version = (self._base_us + ticks, chance.randrange(4), sequence)
        if chance.random() < 0.1:
            return deletion(self._table, key, *version)
        return row_of(self._table, key, *version, trips=sequence)

    def _write(
        self, store: CassandraStore, client: int, keys: Sequence[str], made: Sequence[Row]
    ) -> None:
        begun_ns, ok = time.monotonic_ns(), True
        try:
            store.write(self._table, made)
        except RetryError:
            ok = False
        for key, row in zip(keys, made, strict=True):
            self.history.add(client, key, row.data, begun_ns, writes=True, ok=ok)

    def _read(self, store: CassandraStore, client: int, keys: Sequence[str]) -> None:
        begun_ns = time.monotonic_ns()
        try:
            found = look(store, self._table, *[self._table.key_bytes(key) for key in keys])
        except RetryError:
            return
        for key, data in zip(keys, found, strict=True):
            self.history.add(client, key, data or b"", begun_ns, writes=False)


@pytest.mark.parametrize(("ttl", "seed"), [(None, 1), ("1h", 2)])
def test_strong_tables_are_linearizable_while_nodes_are_killed_and_stopped(
    whole: CassandraRing, ttl: str | None, seed: int
) -> None:
    require_part(linearizable_missing())
    print(f"seed {seed}")
    chance = random.Random(seed)
    stores = [opened(whole), opened(whole)]
    table = table_of(ttl=ttl)
    stores[0].prepare(table)
    registers = Registers(stores, table, seed)

    def some_more() -> None:
        goal = registers.history.acknowledged() + chance.randrange(50, 300)
        eventually(lambda: registers.history.acknowledged() > goal, "clients go on", SLOW_S)

    with clients(registers.work):
        some_more()
        for disturb in chance.sample([_kill, _stop, _stop, _stop_two, _stop_two], 5):
            disturb(whole, chance, some_more)
            some_more()
    assert registers.history.acknowledged() > 500
    assert check(registers.history.operations) == "Ok"
    for store in stores:
        store.close()


def _kill(ring: CassandraRing, chance: random.Random, some_more: Callable[[], None]) -> None:
    node = chance.choice(ring.nodes)
    node.kill()
    some_more()
    node.start()


def _stop(ring: CassandraRing, chance: random.Random, some_more: Callable[[], None]) -> None:
    node = chance.choice(ring.nodes)
    node.pause()
    some_more()
    node.resume()


def _stop_two(ring: CassandraRing, chance: random.Random, some_more: Callable[[], None]) -> None:
    """No majority is left: for a moment nothing is acknowledged."""
    two = chance.sample(ring.nodes, 2)
    for node in two:
        node.pause()
    time.sleep(chance.uniform(0.2, 2.0))  # pause: calls are under way meanwhile
    for node in two:
        node.resume()
    some_more()


# --- broken on purpose ----------------------------------------------------------------------------


def write_at_one(node: CassandraServer, table: Table, row: Row) -> None:
    """As the store writes, but acknowledged by this node alone."""
    text = statements.statements("holdfast_3", table.name).write
    with node.session() as session:
        prepared = session.prepare(text)
        prepared.consistency_level = ConsistencyLevel.ONE
        session.execute(prepared, (statements.timestamp_of(row.data), 0, row.data, row.key))


def settled(call: Callable[[], Any]) -> Any:
    """What it gives, once a majority is there that knows of itself."""
    found: list[Any] = []

    def once() -> bool:
        try:
            found.append(call())
        except RetryError:
            return False
        return True

    eventually(once, "a majority answers", SLOW_S)
    return found[0]


def test_a_write_that_one_copy_has_acknowledged_is_found(whole: CassandraRing) -> None:
    """ONE instead of QUORUM: acknowledged by a node that then is away."""
    require_part(linearizable_missing())
    first, *others = whole.nodes
    store, history = opened(whole), History()
    table = table_of()
    store.prepare(table)
    row = row_of(table, "a", trips=1)
    for node in others:
        node.kill()
    begun_ns = time.monotonic_ns()
    write_at_one(first, table, row)
    history.add(0, "a", row.data, begun_ns, writes=True)
    first.kill()
    for node in others:
        node.start()
    begun_ns = time.monotonic_ns()
    found = settled(lambda: newest(store, table, row))
    history.add(0, "a", found or b"", begun_ns, writes=False)
    store.close()
    assert found is None
    assert check(history.operations) == "Illegal"


@pytest.mark.parametrize(("read_repair", "verdict"), [("BLOCKING", "Ok"), ("NONE", "Illegal")])
def test_a_row_that_was_seen_once_is_seen_by_everybody_after_it(
    whole: CassandraRing, read_repair: str, verdict: str
) -> None:
    """A write that stayed on a minority, and is read: the read has to leave it on a majority."""
    require_part(linearizable_missing())
    first, *others = whole.nodes
    store, history = opened(whole), History()
    table = table_of()
    store.prepare(table)
    with first.session() as session:
        text = f"ALTER TABLE holdfast_3.\"{table.name}\" WITH read_repair = '{read_repair}'"
        session.execute(text)
    row = row_of(table, "a", trips=1)
    for node in others:
        node.kill()
    begun_ns = time.monotonic_ns()
    write_at_one(first, table, row)
    history.add(0, "a", row.data, begun_ns, writes=True, ok=False)
    for node in others:
        node.start()
    whole.wait_whole()

    def seen() -> bool:
        begun_ns = time.monotonic_ns()
        found = settled(lambda: newest(store, table, row))
        history.add(0, "a", found or b"", begun_ns, writes=False)
        return found is not None

    eventually(seen, "a read asks the copy that has it", SLOW_S)
    first.kill()
    begun_ns = time.monotonic_ns()
    found = settled(lambda: newest(store, table, row))
    history.add(0, "a", found or b"", begun_ns, writes=False)
    store.close()
    assert check(history.operations) == verdict


# --- nodes that die, come, and are empty ----------------------------------------------------------


class Load:
    """Strong reads and writes all the time: how many, how long they took, and what failed."""

    def __init__(self, store: CassandraStore, table: Table) -> None:
        self._store = store
        self._table = table
        self._lock = threading.Lock()
        self.took_s: list[float] = []
        self.failed: list[HoldfastError] = []
        self.last: dict[bytes, bytes] = {}

    def work(self, client: int, over: threading.Event) -> None:
        for count in itertools.count():
            if over.is_set():
                return
            row = row_of(self._table, f"{client}-{count % 50}", DAY_US + count, trips=count)
            for call in (lambda row=row: self._write(row), lambda row=row: self._read(row)):
                begun_s = time.monotonic()
                try:
                    call()  # type: ignore[no-untyped-call]
                except HoldfastError as error:
                    self.failed.append(error)
                with self._lock:
                    self.took_s.append(time.monotonic() - begun_s)

    def _write(self, row: Row) -> None:
        self._store.write(self._table, [row])
        self.last[row.key] = row.data

    def _read(self, row: Row) -> None:
        assert newest(self._store, self._table, row) == self.last[row.key]

    def some_more(self, count: int = 200) -> None:
        goal = len(self.took_s) + count
        eventually(lambda: len(self.took_s) > goal, "clients go on", SLOW_S)

    def told(self) -> str:
        took_s = sorted(self.took_s)
        p99_s = took_s[int(0.99 * len(took_s))]
        return f"{len(took_s)} calls, p99 {p99_s * 1e3:.0f} ms, worst {took_s[-1] * 1e3:.0f} ms"


def test_a_node_that_is_killed_costs_no_strong_read_and_no_write(
    whole: CassandraRing, store: CassandraStore
) -> None:
    table = table_of()
    store.prepare(table)
    load = Load(store, table)
    with clients(load.work, 4):
        load.some_more()
        whole.nodes[1].kill()
        load.some_more(600)
        whole.nodes[1].start()
        load.some_more()
    print(load.told())
    assert load.failed == []
    assert look(store, table, *load.last) == list(load.last.values())


def test_without_a_majority_strong_is_refused_with_the_reason_and_eventual_goes_on(
    whole: CassandraRing, store: CassandraStore
) -> None:
    strong, loose = table_of(), table_of("eventual")
    store.prepare(strong)
    store.prepare(loose)
    kept, other = row_of(strong, "kept", trips=1), row_of(strong, "other", trips=2)
    store.write(strong, [kept])
    for node in whole.nodes[1:]:
        node.kill()
    why = ""

    def refused() -> bool:
        nonlocal why
        with pytest.raises((Unavailable, TimedOut)) as error:
            store.write(strong, [other])
        why = error.value.why
        return "2 copies have to answer (QUORUM), and 1 of them" in why

    eventually(refused, "the last node knows that it is alone", SLOW_S)
    assert "nothing was written" in why
    with pytest.raises(RetryError):
        newest(store, strong, kept)
    assert store.read([Asked(strong, [kept.key], Level.EVENTUAL)]) == [[kept.data]]
    row = row_of(loose, trips=1)
    store.write(loose, [row])
    assert newest(store, loose, row) == row.data
    status = store.status()
    assert sorted(state for _, state in status.nodes) == ["down", "down", "up"]
    assert "do not answer" in status.trouble


def test_a_node_that_comes_back_empty_is_noticed_until_it_is_repaired(
    whole: CassandraRing, store: CassandraStore
) -> None:
    table = table_of()
    store.prepare(table)
    written = [row_of(table, f"d{number}", trips=number) for number in range(100)]
    store.write(table, written)
    node = whole.nodes[2]
    node.kill()
    node.empty()
    node.start()
    eventually(lambda: "empty" in dict(store.status().nodes).values(), "it is noticed", SLOW_S)
    found = {one.address: one.state for one in store.nodes()}
    assert found[node.hosts] == "empty"
    assert [state for address, state in found.items() if address != node.hosts] == ["up"] * 2
    assert "nodetool repair -full" in store.status().trouble
    node.nodetool("repair", "-full", "holdfast_3")
    eventually(lambda: not store.status().trouble, "it has its rows again", SLOW_S)
    assert look(store, table, *[row.key for row in written]) == [row.data for row in written]


def test_stores_that_prepare_at_the_same_time_make_one_table(ring: CassandraRing) -> None:
    tables = [table_of() for _ in range(4)]
    stores = [opened(ring) for _ in range(4)]
    for one in stores:
        assert one.nodes()
    threads = [
        start_thread(lambda one=one: [one.prepare(table) for table in tables], "prepare", WAITED)  # type: ignore[misc]
        for one in stores
    ]
    for thread in threads:
        thread.result()
    ids = set()
    for node in ring.nodes:
        with node.session() as session:
            found = session.execute(
                "SELECT keyspace_name, table_name, id FROM system_schema.tables"
            )
            names = {table.name for table in tables}
            ids |= {(row.table_name, row.id) for row in found if row.table_name in names}
    assert len(ids) == len(tables)
    for table in tables:
        row = row_of(table, trips=1)
        stores[0].write(table, [row])
        assert newest(stores[3], table, row) == row.data
    for one in stores:
        one.close()


def test_a_node_joins_and_one_is_replaced_under_load_and_nothing_fails(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    require_part(cassandra_missing())
    with CassandraRing(tmp_path_factory.mktemp("growing")) as growing:
        store = opened(growing)
        table = table_of()
        store.prepare(table)
        load = Load(store, table)
        with clients(load.work, 2):
            load.some_more()
            growing.add()
            growing.wait_whole()
            eventually(lambda: [one.state for one in store.nodes()] == ["up"] * 4, "it is there")
            load.some_more()
            dead = growing.nodes[1]
            dead.kill()
            load.some_more()
            growing.replace(dead)
            load.some_more()
        print(load.told())
        assert load.failed == []
        keys = list(load.last)
        eventually(lambda: not store.status().trouble, "the ring is well", SLOW_S)
        assert look(store, table, *keys) == [load.last[key] for key in keys]
        assert rows.decode(table, load.last[keys[0]])["trips"] is not None
        store.close()


# --- regions --------------------------------------------------------------------------------------


def test_a_table_is_strong_at_home_and_eventual_reads_go_on_when_a_region_is_lost(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    require_part(cassandra_missing())
    with CassandraRing(tmp_path_factory.mktemp("regions"), {"eu": 3, "us": 1}) as regions:
        stores = {
            near: open_store(f"cassandra://{regions.hosts}?dc={near}") for near in ("eu", "us")
        }
        eu, us = stores["eu"], stores["us"]
        table = table_of(home="eu")
        us.prepare(table)
        row = row_of(table, trips=1)
        us.write(table, [row])
        assert newest(eu, table, row) == row.data
        near = [Asked(table, [row.key], Level.EVENTUAL)]
        eventually(lambda: us.read(near) == [[row.data]], "it is there, too", SLOW_S)
        # The other region is no part of the majority at home.
        for node in regions.of("us"):
            node.kill()
        newer = row_of(table, at_us=DAY_US + 1, trips=2)
        eu.write(table, [newer])
        assert newest(eu, table, newer) == newer.data
        for node in regions.of("us"):
            node.start()
        eventually(lambda: us.read(near) == [[newer.data]], "hints bring it", SLOW_S)
        for node in regions.of("eu"):
            node.kill()
        for call in (lambda: newest(us, table, row), lambda: us.write(table, [newer])):
            with pytest.raises(RetryError) as refused:
                call()
            assert refused.value.why
        assert us.read(near) == [[newer.data]]
        eventually(lambda: settled(lambda: eu.read(near)) == [[newer.data]], "from the other")
        assert "the data center eu is away" in eu.status().trouble
        for store in stores.values():
            store.close()
