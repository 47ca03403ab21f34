"""The online store on a cluster of Redis whose nodes die and whose slots move."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from holdfast.features.online.opening import open_store
from holdfast.features.online.redis_cluster import slot_of
from holdfast.features.online.store import OnlineStore
from holdfast.features.rows import Row
from holdfast.features.table import Table
from holdfast.system.tasks import WAITED, start_thread
from holdfast.wire.errors import Refused, RetryError
from tests.conftest import require_service
from tests.contract.features.made import DAY_US, look, row_of
from tests.servers.redis import redis_missing
from tests.servers.redis_cluster import RedisCluster
from tests.waiting import eventually

pytestmark = pytest.mark.engines
COLUMNS = {"trips": "int64", "rating": "float32", "city": "string"}
TABLE = Table("drivers", key="driver", columns=COLUMNS, consistency="eventual")
PREFIX = b"holdfast:t:drivers:"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    require_service(redis_missing())
    with RedisCluster(tmp_path_factory.mktemp("cluster")) as made:
        yield made


@pytest.fixture
def store(cluster: RedisCluster) -> Iterator[OnlineStore]:
    made = open_store(f"redis://{cluster.hosts}?cluster=yes")
    made.prepare(TABLE)
    yield made
    made.close()


def rows_at(at_us: int, count: int = 300) -> list[Row]:
    return [row_of(TABLE, f"d{number}", at_us, trips=number) for number in range(count)]


def test_a_strong_table_is_refused_with_the_reason(store: OnlineStore) -> None:
    with pytest.raises(Refused, match="strong") as refused:
        store.prepare(Table("drivers", key="driver", columns=COLUMNS))
    assert "failover" in refused.value.why


def test_while_a_primary_is_away_its_replica_is_read_and_then_takes_over(
    cluster: RedisCluster, store: OnlineStore
) -> None:
    before, after = rows_at(DAY_US), rows_at(DAY_US + 1)
    keys = [row.key for row in before]
    assert all(store.write(TABLE, before))
    eventually(cluster.copied, "replicas have what was written")
    victim = cluster.primary_of(slot_of(PREFIX + b"d0"))
    victim.kill()
    assert look(store, TABLE, *keys) == [row.data for row in before], "read from the replica"
    assert any(state == "down" for _, state in store.status().nodes)

    def written() -> bool:
        try:
            store.write(TABLE, after)
        except RetryError:
            return False
        return True

    eventually(written, "the replica has taken over")
    assert look(store, TABLE, *keys) == [row.data for row in after]
    victim.start()
    cluster.wait_whole()
    eventually(lambda: not store.status().trouble, "all is well")
    store.write(TABLE, before)
    assert look(store, TABLE, *keys) == [row.data for row in after], "the newest stays"


def test_a_slot_that_moves_is_followed_and_no_row_is_missed(
    cluster: RedisCluster, store: OnlineStore
) -> None:
    cluster.wait_whole()
    cluster.set_node_timeout_ms(60_000)  # nobody takes over because a busy machine stood still
    written = rows_at(DAY_US)
    keys = [row.key for row in written]
    store.forget(TABLE)
    store.write(TABLE, written)
    over = threading.Event()
    newest = {row.key: row.data for row in written}

    def write() -> None:
        at_us = DAY_US
        while not over.is_set():
            at_us += 1
            batch = rows_at(at_us)
            with suppress(RetryError):  # the machine may be busy
                store.write(TABLE, batch)
                newest.update({row.key: row.data for row in batch})

    def read() -> None:
        while not over.is_set():
            with suppress(RetryError):
                assert None not in look(store, TABLE, *keys)

    threads = [start_thread(work, work.__name__, WAITED) for work in (write, read)]
    try:
        for key in keys[:8]:
            cluster.move(slot_of(PREFIX + key))
    finally:
        over.set()
        for thread in threads:
            thread.result()
    for key, found in zip(keys, look(store, TABLE, *keys), strict=True):
        assert found is not None
        assert found >= newest[key]
    store.forget(TABLE)
    assert look(store, TABLE, *keys) == [None] * len(keys)
