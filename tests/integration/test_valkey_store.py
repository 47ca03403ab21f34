"""The online store on a real Valkey or Redis: what it refuses to promise, what its errors say, and
what is particular to this engine. What every engine does is in `tests/contract/features`."""

from __future__ import annotations

import os
import resource
import signal
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import redis

from holdfast.features import hosting, valkey_server
from holdfast.features.address import FeaturesAddress
from holdfast.features.online.opening import open_store
from holdfast.features.online.store import OnlineStore
from holdfast.features.rows import Row
from holdfast.features.table import Table
from holdfast.supervise import records, supervisor, wanted
from holdfast.supervise.records import Process
from holdfast.wire.errors import Full, HoldfastError, Occupied, Refused, RetryError, Unavailable
from tests.conftest import require_service
from tests.contract.features.made import DAY_US, deletion, look, newest, row_of
from tests.servers.redis import RedisServer, redis_missing
from tests.servers.redis_cluster import RedisNode
from tests.servers.valkey import SECRET, ValkeyServer, valkey_missing
from tests.waiting import eventually

COLUMNS = {"trips": "int64", "rating": "float32", "city": "string", "blob": "bytes"}


def table_of(consistency: str = "strong", name: str = "drivers") -> Table:
    return Table(name, key={"driver": "string"}, columns=COLUMNS, consistency=consistency)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ValkeyServer]:
    require_service(valkey_missing())
    with ValkeyServer(tmp_path / "cluster") as made:
        yield made


@pytest.fixture
def store(server: ValkeyServer) -> Iterator[OnlineStore]:
    made = open_store(server.address)
    yield made
    made.close()


def refusal(address: FeaturesAddress | str, table: Table) -> HoldfastError:
    """What `prepare` says there."""
    made = open_store(address)
    try:
        with pytest.raises(Refused) as refused:
            made.prepare(table)
    finally:
        made.close()
    assert refused.value.why
    assert refused.value.fix
    return refused.value


# --- what it refuses to promise -------------------------------------------------------------------


@pytest.mark.parametrize("consistency", ["strong", "bounded: 5s"])
def test_a_table_that_promises_durable_writes_is_refused_by_a_redis_of_others(
    tmp_path: Path, consistency: str
) -> None:
    require_service(redis_missing())
    with RedisServer(tmp_path, "--appendonly", "yes", "--appendfsync", "always") as server:
        error = refusal(f"redis://{server.hosts}", table_of(consistency))
        assert "failover" in error.why
        assert "Cassandra" in error.fix


@pytest.mark.parametrize(
    ("name", "value"),
    [("appendfsync", "everysec"), ("appendonly", "no"), ("no-appendfsync-on-rewrite", "yes")],
)
def test_a_strong_table_is_refused_where_answers_do_not_wait_for_the_disk(
    server: ValkeyServer, name: str, value: str
) -> None:
    with server.client() as client:
        client.config_set(name, value)
    error = refusal(server.address, table_of())
    assert f"{name} is {value}" in error.why
    made = open_store(server.address)
    assert f"{name} is {value}" in made.status().trouble
    made.prepare(table_of("eventual"))
    made.close()


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
def test_no_table_is_kept_where_full_memory_throws_rows_away(tmp_path: Path, policy: str) -> None:
    require_service(redis_missing())
    with RedisServer(tmp_path, "--maxmemory-policy", policy) as server:
        error = refusal(f"redis://{server.hosts}", table_of("eventual"))
        assert policy in error.why
        assert "noeviction" in error.fix


def test_an_address_that_is_wrong_about_a_cluster_is_refused(tmp_path: Path) -> None:
    require_service(redis_missing())
    with RedisServer(tmp_path / "alone") as server:
        made = open_store(f"redis://{server.hosts}?cluster=yes")
        with pytest.raises(HoldfastError) as refused:
            made.prepare(table_of("eventual"))
        assert "leave cluster=yes out" in refused.value.fix
        made.close()
    with RedisNode(tmp_path / "node") as node:
        assert "cluster=yes" in refusal(f"redis://{node.hosts}", table_of("eventual")).fix


def test_a_replica_is_refused_since_it_takes_no_writes(tmp_path: Path) -> None:
    require_service(redis_missing())
    with (
        RedisServer(tmp_path / "primary") as primary,
        RedisServer(tmp_path / "replica", "--replicaof", "127.0.0.1", str(primary.port)) as replica,
    ):
        assert "replica of" in refusal(f"redis://{replica.hosts}", table_of("eventual")).why


# --- errors ---------------------------------------------------------------------------------------


def test_a_wrong_password_is_refused_with_where_to_look(server: ValkeyServer) -> None:
    where = hosting.address_in(server.folder)
    table = table_of()
    for address in (where.with_password("holdfast", "wrong"), where):
        assert "password" in refusal(address, table).fix
        made = open_store(address)
        with pytest.raises(Refused, match="cannot be read"):
            look(made, table, b"a")
        assert [state for _, state in made.status().nodes] == ["down"]
        made.close()


def test_full_memory_is_told_and_reads_go_on(tmp_path: Path) -> None:
    require_service(redis_missing())
    with RedisServer(tmp_path, "--maxmemory", "4mb") as server:
        made = open_store(f"redis://{server.hosts}")
        table = table_of("eventual")
        made.prepare(table)
        first = row_of(table, "first", blob=b"x")
        made.write(table, [first])
        with pytest.raises(Full) as full:
            for number in range(100):
                made.write(table, [row_of(table, f"d{number}", blob=bytes(100_000))])
        assert "maxmemory" in full.value.fix
        assert newest(made, table, first) == first.data
        assert made.status().trouble
        made.close()


def test_a_disk_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    require_service(redis_missing())
    with RedisServer(tmp_path, "--save", "3600 1") as server:
        made = open_store(f"redis://{server.hosts}")
        table = table_of("eventual")
        made.prepare(table)
        made.write(table, [row_of(table, trips=1)])
        in_its_place = server.folder / "dump.rdb"
        in_its_place.mkdir()
        eventually(lambda: _snapshot_has_failed(server), "a snapshot has failed")
        with pytest.raises(Full) as full:
            made.write(table, [row_of(table, "b", trips=1)])
        assert "disk" in full.value.fix
        made.close()
        in_its_place.rmdir()  # at its end it takes another snapshot


def _snapshot_has_failed(server: RedisServer) -> bool:
    with client_of(server) as client:
        with suppress(redis.ResponseError):  # one is under way
            client.bgsave()
        return bool(client.info("persistence")["rdb_last_bgsave_status"] == "err")


def client_of(server: RedisServer) -> redis.Redis:
    return redis.Redis(port=server.port, protocol=2)


def test_a_key_of_somebody_else_is_refused_and_stays(tmp_path: Path) -> None:
    require_service(redis_missing())
    with RedisServer(tmp_path) as server, client_of(server) as client:
        client.rpush("holdfast:t:drivers:a", "mine")
        made = open_store(f"redis://{server.hosts}")
        table = table_of("eventual")
        with pytest.raises(Refused) as refused:
            made.write(table, [row_of(table, trips=1)])
        assert "prefix" in refused.value.fix
        assert client.lrange("holdfast:t:drivers:a", 0, -1) == [b"mine"]
        made.close()


def test_a_disk_that_is_full_ends_the_server_and_nothing_acknowledged_is_lost(
    server: ValkeyServer, store: OnlineStore
) -> None:
    table = table_of()
    store.prepare(table)
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (1_000_000, hard))
    written: list[Row] = []
    with pytest.raises(RetryError):
        for number in range(100):
            row = row_of(table, f"d{number}", blob=bytes(90_000))
            store.write(table, [row])
            written.append(row)
    assert 5 < len(written) < 15
    assert server.process is not None
    assert server.process.wait(60) != 0
    server.start()
    assert look(store, table, *[row.key for row in written]) == [row.data for row in written]


def test_a_server_is_not_started_on_a_disk_without_room_and_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    require_service(valkey_missing())
    hosting.command(tmp_path, SECRET)
    monkeypatch.setattr(valkey_server, "FREE_BYTES_MIN", 2**62)
    # A supervisor starts it again and again, and never gives it up.
    assert valkey_server.main(["--cluster", str(tmp_path)]) == RetryError.exit_code
    assert "make room" in capsys.readouterr().err
    assert records.recorded(tmp_path, hosting.KIND, hosting.NAME) is None


def test_a_server_that_still_reads_its_disk_is_joining_and_not_up(tmp_path: Path) -> None:
    require_service(redis_missing())
    table = table_of("eventual")
    with RedisServer(tmp_path, "--save", "3600 1") as server:
        made = open_store(f"redis://{server.hosts}")
        made.prepare(table)
        made.write(table, [row_of(table, f"d{number}") for number in range(6_000)])
        with client_of(server) as client:
            client.save()
        server.kill()
        slowly = ("--key-load-delay", "10000", "--loading-process-events-interval-bytes", "1024")
        server.options = (*server.options, *slowly)
        server.launch()
        eventually(lambda: {state for _, state in made.status().nodes} == {"joining"}, "it reads")
        assert "reads what it has on disk" in made.status().trouble
        for call in (lambda: look(made, table, b"d1"), lambda: made.prepare(table)):
            with pytest.raises(Unavailable) as away:
                call()
            assert "on disk" in away.value.fix
        made.close()
        server.kill()


# --- what is particular ---------------------------------------------------------------------------


def test_it_says_of_each_row_whether_it_is_the_newest_now(store: OnlineStore) -> None:
    table = table_of()
    store.prepare(table)
    row, late = row_of(table, at_us=DAY_US + 1, trips=1), row_of(table, at_us=DAY_US, trips=2)
    other = row_of(table, "other", trips=1)
    assert store.write(table, [row]) == [True]
    assert store.write(table, [late, other, row]) == [False, True, False]
    gone = deletion(table, at_us=DAY_US + 2)
    assert store.write(table, [gone, row]) == [True, False]


def test_a_server_that_has_forgotten_the_script_gets_it_again(
    server: ValkeyServer, store: OnlineStore
) -> None:
    table = table_of()
    store.prepare(table)
    with server.client() as client:
        for number in range(3):
            client.script_flush()
            written = [row_of(table, f"{number}-{n}", trips=n) for n in range(2_500)]
            assert all(store.write(table, written))
            assert look(store, table, *[row.key for row in written]) == [
                row.data for row in written
            ]


def test_rows_have_the_name_of_their_table_in_front_of_their_key(
    server: ValkeyServer, store: OnlineStore
) -> None:
    table = table_of()
    store.write(table, [row_of(table, "a b", trips=1)])
    with server.client() as client:
        assert client.keys() == [b"t:drivers:a b"]


def test_a_deleted_row_is_remembered_for_days_and_not_for_ever(
    server: ValkeyServer, store: OnlineStore
) -> None:
    table = table_of()
    store.write(table, [deletion(table), row_of(table, "stays", trips=1)])
    with server.client() as client:
        assert 9 * 86_400 < client.ttl("t:drivers:a") <= 10 * 86_400
        assert client.ttl("t:drivers:stays") == -1


def test_a_socket_with_a_long_path_is_reached(tmp_path: Path) -> None:
    require_service(valkey_missing())
    with ValkeyServer(tmp_path / ("long-" * 20) / ("longer-" * 10)) as server:
        assert len(str(server.socket)) > 150
        made = open_store(server.address)
        table = table_of()
        made.prepare(table)
        row = row_of(table, trips=1)
        made.write(table, [row])
        server.kill()
        server.launch()
        eventually(lambda: not made.status().trouble, "it is back")
        assert newest(made, table, row) == row.data
        made.close()


def test_a_forked_process_may_use_a_store_that_was_opened_before(store: OnlineStore) -> None:
    table = table_of()
    store.prepare(table)
    row = row_of(table, trips=1)
    store.write(table, [row])
    child = os.fork()
    if not child:
        ended = 1
        try:
            ended = 0 if newest(store, table, row) == row.data else 2
        finally:
            os._exit(ended)
    assert newest(store, table, row) == row.data
    assert os.waitpid(child, 0)[1] == 0
    assert newest(store, table, row) == row.data


# --- the server of a cluster's folder -------------------------------------------------------------


def test_nobody_else_on_the_machine_reaches_it(server: ValkeyServer) -> None:
    assert stat.S_IMODE(server.socket.stat().st_mode) == 0o700
    assert stat.S_IMODE(server.socket.parent.stat().st_mode) == 0o700
    with server.client() as client:
        assert client.config_get("port") == {"port": "0"}
        assert client.info("server")["tcp_port"] == 0


def test_a_worker_reads_and_writes_rows_and_nothing_else(server: ValkeyServer) -> None:
    worker = open_store(server.worker_address)
    table = table_of()
    rows = [row_of(table, f"d{number}", trips=number) for number in range(10)]
    assert all(worker.write(table, rows))
    assert look(worker, table, rows[3].key) == [rows[3].data]
    assert len(worker.scan(table)[0]) == 10
    with pytest.raises(Refused):
        worker.forget(table)
    worker.close()
    address = server.worker_address
    client = redis.Redis(
        unix_socket_path=str(server.socket),
        username=address.user,
        password=address.read_password(),
        protocol=2,
    )
    for words in (
        ("FLUSHALL",),
        ("CONFIG", "SET", "appendfsync", "no"),
        ("SHUTDOWN",),
        ("DEL", "t:drivers:d1"),
        ("SET", "elsewhere", "1"),
        ("EVAL", "return redis.call('DEL', KEYS[1])", "1", "t:drivers:d1"),
        ("ACL", "LIST"),
    ):
        with pytest.raises(redis.exceptions.ResponseError):
            client.execute_command(*words)  # type: ignore[no-untyped-call]
    client.close()


def test_there_is_one_server_over_a_folder(server: ValkeyServer, store: OnlineStore) -> None:
    table = table_of()
    store.prepare(table)
    second = ValkeyServer(server.folder)
    second.launch()
    assert second.process is not None
    assert second.process.wait(60) == Occupied.exit_code
    row = row_of(table, trips=1)
    store.write(table, [row])
    assert newest(store, table, row) == row.data


def test_a_supervisor_starts_it_again_with_all_that_was_acknowledged(tmp_path: Path) -> None:
    require_service(valkey_missing())
    folder = tmp_path / "cluster"
    folder.mkdir()
    (folder / "cluster.json").touch()
    with wanted.alone(folder):
        # Something else is wanted here, that has ended in order.
        wanted.want(folder, [(Process("agent", "node-1", 0, 0, ""), ("true",))])
        assert hosting.keep(folder, SECRET)
    made = open_store(hosting.as_owner(hosting.address_in(folder), SECRET))
    table = table_of()
    written: list[Row] = []
    try:
        for number in range(3):
            eventually(lambda: not made.status().trouble, "it runs")
            assert hosting.lives(folder)
            made.prepare(table)
            written += [row_of(table, f"{number}-{n}", trips=n) for n in range(100)]
            made.write(table, written[-100:])
            process = records.recorded(folder, hosting.KIND, hosting.NAME)
            assert process is not None
            process.send(signal.SIGKILL)
            assert process.wait(60)
        eventually(lambda: not made.status().trouble, "it runs")
        assert look(made, table, *[row.key for row in written]) == [row.data for row in written]
    finally:
        made.close()
        wanted.end(folder)
        for kind, name in ((supervisor.KIND, supervisor.NAME), (hosting.KIND, hosting.NAME)):
            process = records.recorded(folder, kind, name)
            if process is not None and process.alive:
                process.send(signal.SIGTERM)
                assert process.wait(60)
    assert not hosting.lives(folder)


def test_a_server_that_is_away_is_unavailable_with_what_to_do(tmp_path: Path) -> None:
    made = open_store(hosting.as_owner(hosting.address_in(tmp_path), SECRET))
    with pytest.raises(Unavailable) as away:
        made.prepare(table_of())
    assert "whether the server runs" in away.value.fix
    assert made.status().trouble
    made.close()
