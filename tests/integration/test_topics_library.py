"""The library of topics when things go wrong: brokers die, programs end, forks, Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest

from holdfast import topics
from holdfast.topics import Connection, Record, transaction
from holdfast.wire.errors import Cancelled, Full, MissingExtra, TimedOut, Unavailable, Usage
from tests.integration.topics_side import Side
from tests.servers.broker import BrokerServer
from tests.waiting import PATIENCE_S, eventually

TOPIC = "events"
T = TypeVar("T")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerServer]:
    with BrokerServer(tmp_path / "broker") as server:
        yield server


@pytest.fixture
def cluster(broker: BrokerServer) -> Connection:
    return topics.connect(f"kafka://{broker.hosts}")


def read(cluster: Connection, count: int, **settings: object) -> list[Record]:
    found: list[Record] = []
    with cluster.consumer(TOPIC, **settings) as consumer:
        eventually(
            lambda: found.extend(consumer.poll(0.5)) or len(found) >= count,  # type: ignore[func-returns-value]
            f"{count} records",
        )
    return found


def test_what_is_asked_while_the_broker_is_started_again_is_answered_by_the_new_one(
    broker: BrokerServer, cluster: Connection
) -> None:
    admin = cluster.admin
    admin.create(TOPIC, 2)
    with cluster.producer() as producer:
        producer.send(TOPIC, b"0", partition=0)
    with cluster.consumer(TOPIC, group="readers") as consumer:
        eventually(lambda: consumer.poll(0.5), "a record is read")
        consumer.commit()
    eventually(lambda: admin.groups()[0].members == (), "it has left")

    def asked(ask: Callable[[], T]) -> T:
        """Its answer, asked for at once when the broker was killed."""
        broker.kill()
        with ThreadPoolExecutor(1) as other:
            started = other.submit(broker.start)
            answer = ask()
            started.result()
        return answer

    assert asked(admin.list_topics) == [TOPIC]
    assert asked(lambda: admin.describe(TOPIC).partitions) == 2
    assert asked(lambda: admin.offsets(TOPIC)) == {0: 1, 1: 0}
    assert asked(lambda: [one.name for one in admin.groups()]) == ["readers"]
    assert asked(lambda: [one.lag for one in admin.lag("readers")]) == [0, 0]
    assert asked(lambda: admin.create("other", 2).partitions) == 2
    asked(lambda: admin.alter("other", partitions=4, configs={"retention.ms": "100000"}))
    assert admin.describe("other").partitions == 4
    assert admin.describe("other").configs["retention.ms"] == "100000"
    asked(lambda: admin.reset("readers", TOPIC, "earliest"))
    assert [one.lag for one in admin.lag("readers")] == [1, 0]
    asked(lambda: admin.delete_group("readers"))
    asked(lambda: admin.delete("other"))
    assert admin.groups() == [] and admin.list_topics() == [TOPIC]
    with cluster.consumer(TOPIC, group="others") as consumer:
        (first,) = eventually(lambda: consumer.poll(0.5), "a record is read")
        asked(lambda: consumer.commit(first))
        note = asked(lambda: consumer.committed_note(first.position))
        assert note == ""
    with cluster.consumer(TOPIC) as alone:
        (first,) = asked(lambda: eventually(lambda: alone.poll(0.5), "a record is read"))
        assert first.raw == b"0"
    cluster.close()


def test_a_broker_that_does_not_answer_makes_senders_wait_and_nothing_is_lost(
    broker: BrokerServer, cluster: Connection
) -> None:
    producer = cluster.producer(buffer_bytes=1 << 20, send_s=0.5)
    producer.send(TOPIC, b"first").result(PATIENCE_S)
    broker.pause()
    sent = 1
    with pytest.raises(Full, match="buffer full") as found:
        while True:
            producer.send(TOPIC, bytes(20_000))
            sent += 1
    assert "records wait for the broker" in found.value.why
    assert not producer.try_send(TOPIC, bytes(20_000))
    with pytest.raises(TimedOut, match=rf"{sent - 1} records have no answer"):
        producer.flush(0.2)
    broker.resume()
    producer.send(TOPIC, b"last").result(PATIENCE_S)
    producer.close()
    assert [record.offset for record in read(cluster, sent + 1)] == list(range(sent + 1))
    cluster.close()


def test_a_kill_of_the_broker_loses_and_doubles_nothing_that_was_sent(
    broker: BrokerServer, cluster: Connection
) -> None:
    producer = cluster.producer(codec=topics.JSON)
    futures = []
    for number in range(600):
        futures.append(producer.send(TOPIC, number))
        if number in (200, 400):
            futures[number - 50].result(PATIENCE_S)
            broker.kill()
            broker.start()
    assert [future.result(PATIENCE_S).offset for future in futures] == list(range(600))
    cluster.close()
    with topics.connect(str(cluster.address)) as again:
        assert [one.value for one in read(again, 600, codec=topics.JSON)] == list(range(600))


def test_closing_while_the_broker_is_dead_tells_every_record_that_was_not_written(
    broker: BrokerServer, cluster: Connection
) -> None:
    producer = cluster.producer()
    producer.send(TOPIC, b"written").result(PATIENCE_S)
    broker.kill()
    futures = [producer.send(TOPIC, b"lost") for _ in range(10)]
    with pytest.raises(TimedOut, match="10 records have no answer"):
        producer.close(0.3)
    for future in futures:
        assert isinstance(future.exception(10), Cancelled)
    assert producer.failed == 10
    with pytest.raises(Usage, match="the producer is closed"):
        producer.send(TOPIC, b"late")
    cluster.close()


def test_a_reader_is_told_that_no_broker_answers_and_goes_on_when_one_does(
    broker: BrokerServer, cluster: Connection
) -> None:
    cluster.producer().send(TOPIC, b"0").result(PATIENCE_S)
    consumer = cluster.consumer(TOPIC, group="patient", away_s=1.0, session_s=6.0)
    consumer.commit(eventually(lambda: consumer.poll(0.5), "the first record"))
    broker.kill()
    with pytest.raises(Unavailable, match="no broker has answered"):
        while True:
            consumer.poll(1.0)
    broker.start()
    cluster.producer().send(TOPIC, b"1").result(PATIENCE_S)

    def found() -> bool:
        try:
            return [one.value for one in consumer.poll(0.5)] == [b"1"]
        except Unavailable:
            return False

    eventually(found, "the second record")
    assert consumer.commit() == []
    cluster.close()


def test_a_subscriber_goes_on_after_the_brokers_death(
    broker: BrokerServer, cluster: Connection
) -> None:
    cluster.admin.create(TOPIC)
    found: list[object] = []
    cluster.subscribe(TOPIC, lambda record: found.append(record.value), group="subscribers")
    producer = cluster.producer()
    for number in range(3):
        producer.send(TOPIC, b"%d" % number).result(PATIENCE_S)
        eventually(lambda number=number: len(set(found)) > number, "the record is handled")  # type: ignore[misc]
        broker.kill()
        broker.start()
    assert list(dict.fromkeys(found)) == [b"0", b"1", b"2"]
    cluster.close()


def test_a_commit_without_an_answer_is_found_out_before_the_reader_goes_on(
    broker: BrokerServer, cluster: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction, "STEP_S", 1.0)
    cluster.admin.create(TOPIC)
    cluster.admin.create("target")
    producer = cluster.producer()
    for number in range(2):
        producer.send(TOPIC, b"%d" % number).result(PATIENCE_S)
    consumer = cluster.consumer(TOPIC, group="chain")
    with (
        pytest.raises(Unavailable, match="was not committed") as found,
        cluster.transaction("chain") as txn,
    ):
        eventually(lambda: consumer.poll(0.5, records_max=1), "a record")
        txn.send("target", b"0").result(PATIENCE_S)
        txn.commit_offsets(consumer)
        broker.pause()
    assert "it may have been committed" in found.value.why
    broker.resume()
    monkeypatch.setattr(transaction, "STEP_S", 60.0)
    # The commit lay in the broker's socket, or was never sent: what is read next says which.
    (record,) = eventually(lambda: consumer.poll(0.5, records_max=1), "what comes next")
    with cluster.transaction("chain", consumer) as txn:
        txn.send("target", record.value)
    while cluster.admin.lag("chain")[0].lag:
        (record,) = eventually(lambda: consumer.poll(0.5, records_max=1), "the last one")
        with cluster.transaction("chain", consumer) as txn:
            txn.send("target", record.value)
    with cluster.consumer("target") as reader:
        seen: list[object] = []
        eventually(
            lambda: seen.extend(one.value for one in reader.poll(0.5)) or len(seen) >= 2,  # type: ignore[func-returns-value]
            "both",
        )
        assert seen == [b"0", b"1"]
        assert reader.poll(0.5) == []
    cluster.close()


def test_a_forked_process_is_refused_and_ends(cluster: Connection) -> None:
    producer = cluster.producer()
    producer.send(TOPIC, b"parent").result(PATIENCE_S)
    consumer = cluster.consumer(TOPIC)
    calls: list[Callable[[], object]] = [
        lambda: producer.send(TOPIC, b"child"),
        producer.flush,
        consumer.poll,
        cluster.admin.list_topics,
    ]
    _ = cluster.admin
    child = os.fork()
    if child == 0:
        wrong = 0
        try:
            for call in calls:
                try:
                    call()
                except Usage as error:
                    wrong += "before this process was forked" not in error.what
                else:
                    wrong += 1
            del producer, consumer, calls, cluster
        finally:
            os._exit(wrong)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    producer.send(TOPIC, b"parent").result(PATIENCE_S)
    cluster.close()


PROGRAM = """
import os, sys, threading, time
from holdfast import topics
cluster = topics.connect(sys.argv[1])
producer = cluster.producer()
"""


def _program(broker: BrokerServer, text: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROGRAM + text, f"kafka://{broker.hosts}"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_program_that_ends_without_closing_has_written_what_it_sent(
    broker: BrokerServer, cluster: Connection
) -> None:
    sends = "for number in range(50): producer.send('events', b'x')\n"
    assert _program(broker, sends).wait(PATIENCE_S) == 0
    assert len(read(cluster, 50)) == 50
    cluster.close()


def test_a_forked_program_that_ends_by_itself_does_not_hang(broker: BrokerServer) -> None:
    forks = (
        "producer.send('events', b'x').result()\n"
        "child = os.fork()\n"
        "if child: sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
        "sys.exit(0)\n"
    )
    program = _program(broker, forks)
    assert program.wait(PATIENCE_S) == 0, program.communicate()


@pytest.mark.parametrize(
    "waiting",
    [
        "[record for record in cluster.consumer('events', group='g')]",
        "producer.flush(600)",
        "[producer.send('events', bytes(100_000)) for _ in range(10_000)]",
        "producer.send('events', b'x').result()",
    ],
    ids=["iterating", "flushing", "sending", "a future"],
)
def test_ctrl_c_ends_a_program_that_waits(broker: BrokerServer, waiting: str) -> None:
    text = f"producer.send('events', b'x')\nprint('ready', flush=True)\nsys.stdin.read()\n{waiting}"
    command = [sys.executable, "-c", PROGRAM + text, f"kafka://{broker.hosts}"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        broker.pause()
        program.stdin.close()
        time.sleep(1.5)  # pause: it is waiting by now
        begun_s = time.monotonic()
        program.send_signal(signal.SIGINT)
        program.stdin = None
        _, errors = program.communicate(timeout=PATIENCE_S)
        assert "KeyboardInterrupt" in errors
        # What was sent has some seconds at the end of the program.
        assert time.monotonic() - begun_s < 30.0
    broker.resume()


def test_the_latest_record_of_an_open_transaction_is_not_told_to_readers_of_committed_ones(
    broker: BrokerServer,
) -> None:
    side = Side(broker.hosts)
    side.create(TOPIC, 1)
    side.begin("w", "w", 60_000, None)
    side.add("w", "w", -1, TOPIC, [0])
    side.write(TOPIC, 0, producer="w", sequence=0, transactional="w")
    assert side.offset(TOPIC, 0, -3)[:2] == (0, 0)
    assert side.offset(TOPIC, 0, -3, committed=True)[:2] == (0, -1)
    side.close()


def test_without_the_extra_the_command_that_installs_it_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with topics.connect("kafka://127.0.0.1:1") as cluster, pytest.raises(MissingExtra) as found:
        cluster.producer()
    assert found.value.fix == "pip install 'holdfast[topics]'"
