"""What jobs tell on topics: the numbers of their steps, and on request their output."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import topics
from holdfast.agent.folders import Folders
from holdfast.agent.log_files import LogPosition, Piece, Source
from holdfast.agent.log_topic import LOG_LINE_BYTES_MAX, MARK, LogTopic, lines_of
from holdfast.train import metric_topic
from holdfast.train.metric_topic import METRICS_WAITING_MAX, MetricTopic
from tests.servers.broker import BrokerServer
from tests.waiting import eventually

STEPS = METRICS_WAITING_MAX + 500


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerServer]:
    with BrokerServer(tmp_path / "broker") as server:
        yield server


def connect(broker: BrokerServer) -> topics.Connection:
    return topics.connect(f"kafka://{broker.hosts}")


def read(broker: BrokerServer, topic: str, count: int) -> list[dict[str, object]]:
    """So many records, as they come."""
    found: list[dict[str, object]] = []
    with connect(broker) as cluster:
        cluster.admin.ensure(topic)
        consumer = cluster.consumer(topic, start="earliest")

        def all_there() -> bool:
            found.extend(msgspec.json.decode(one.value) for one in consumer.poll(0.2))
            return len(found) >= count

        eventually(all_there, f"{count} records of {topic}")
    return found


def test_numbers_of_steps_are_told_and_a_step_never_waits_for_topics_that_are_away(
    broker: BrokerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metric_topic, "METRICS_AWAY_S", 0.2)
    told = MetricTopic("train", 3, lambda: connect(broker))
    told.step(1, {"loss": 0.5, "accuracy": float("nan")})
    (first,) = read(broker, "metrics.train", 1)
    assert first["metrics"] == {"loss": 0.5, "accuracy": None}
    assert (first["job"], first["worker"], first["step"]) == ("train", 3, 1)

    os.kill(broker.pid, signal.SIGSTOP)
    began_s = time.thread_time()
    for step in range(2, STEPS):
        told.step(step, {"loss": 1 / step})
    assert time.thread_time() - began_s < 5.0
    os.kill(broker.pid, signal.SIGCONT)
    told.close()
    every = read(broker, "metrics.train", STEPS - 1 - told.dropped)
    steps = [int(str(record["step"])) for record in every]
    assert steps == sorted(set(steps)), "in order, none twice"
    assert steps[-1] == STEPS - 1
    assert len(steps) + told.dropped >= STEPS - 1


def test_topics_that_cannot_be_used_end_no_training() -> None:
    def refuse() -> topics.Connection:
        raise RuntimeError("a bug")

    told = MetricTopic("train", 1, refuse)
    told.step(1, {"loss": 0.5})
    eventually(lambda: told._over, "it has given up")
    told.step(2, {"loss": 0.5})
    told.close()


@given(st.lists(st.binary(max_size=9).map(lambda data: data.replace(b"\r", b"\n")), max_size=9))
def test_lines_are_the_same_however_the_log_is_cut_into_pieces(pieces: list[bytes]) -> None:
    source, rest = Source(1, "out"), dict[Source, bytes]()
    found = [
        line for data in pieces for line in lines_of(rest, Piece(source, LogPosition(1, 0), data))
    ]
    whole = b"".join(pieces)
    assert [*found, rest.get(source, b"")] == whole.split(b"\n")


def test_a_line_that_never_ends_is_told_in_parts() -> None:
    source, rest = Source(1, "out"), dict[Source, bytes]()
    piece = Piece(source, LogPosition(1, 0), b"x" * (2 * LOG_LINE_BYTES_MAX + 1))
    assert [len(line) for line in lines_of(rest, piece)] == [LOG_LINE_BYTES_MAX] * 2
    assert rest == {source: b"x"}


def test_output_of_marked_workers_is_told_from_where_the_agent_before_had_come(
    broker: BrokerServer, tmp_path: Path
) -> None:
    folders = Folders(tmp_path / "agent")
    folders.make()
    for name in ("asks.1", "asks.not.2"):
        (folders.logs / name).mkdir()
        (folders.workers / name).mkdir()
    (folders.logs / "asks.1" / MARK).touch()
    out, err = (folders.logs / "asks.1" / f"{name}.log" for name in ("out", "err"))
    out.write_bytes(b"first\nsecond\nhalf")
    err.write_bytes(b"trouble\n")
    (folders.logs / "asks.not.2" / "out.log").write_bytes(b"not told\n")

    first = LogTopic(folders, "a", lambda: connect(broker))
    first.tell()
    first._close()
    with out.open("ab") as file:
        file.write(b" a line\n\xff\nlast without an end")
    second = LogTopic(folders, "a", lambda: connect(broker))
    second.tell()
    second.tell()
    (folders.workers / "asks.1").rmdir()
    second.tell()
    assert (folders.logs / "asks.1" / MARK).exists()
    second.tell()
    assert not (folders.logs / "asks.1" / MARK).exists(), "all was told, and no more will come"
    second._close()
    every = read(broker, "logs.asks", 6)
    lines = Counter((record["output"], record["line"]) for record in every)
    told = [*("first", "second", "half a line", "\ufffd", "last without an end")]
    assert lines == Counter([*(("out", line) for line in told), ("err", "trouble")])
    assert {(record["job"], record["worker"], record["node"]) for record in every} == {
        ("asks", 1, "a")
    }
    with connect(broker) as cluster:
        assert not [name for name in cluster.admin.list_topics() if "not" in name]
