"""The bench of the coordination plane works, counts what is wrong, and calls a miss a miss."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from rich.console import Console

from bench.coordination import clients, fill, wire
from bench.coordination.clients import OPERATIONS
from bench.coordination.command import Section, measure
from bench.coordination.contestants import snapshots_in
from bench.coordination.generator import LoadFailed, LoadGenerator
from bench.coordination.plan import TINY
from bench.coordination.probes import with_the_unsent
from bench.coordination.report import FASTER, PIPELINED, Goal, Report, Row, percentile, table
from bench.coordination.wire import Link
from tests.servers import EmbeddedServer

FOLDER = b"/bench/test"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(tmp_path_factory.mktemp("bench")) as running:
        yield running


def test_every_section_measures_our_server_and_leaves_nothing_behind(tmp_path: Path) -> None:
    report = measure(TINY, tmp_path, with_zookeeper=False)
    assert {row.section for row in report.rows} == set(Section)
    assert report.wrong == 0
    for row in report.rows:
        ours = row.value("ours")
        assert ours is not None, row.what
        assert ours > 0 or row.unit == "", row.what
        assert row.value("zookeeper") is None
        assert row.verdict != "reached" or "ratio" not in row.goal_text
    assert not list(tmp_path.iterdir())
    document = json.loads(json.dumps(report.as_json()))
    assert len(document["rows"]) == len(report.rows)
    assert document["machine"]["fsync_p50_ms"] > 0


@pytest.mark.parametrize("in_flight", [1, 16])
@pytest.mark.parametrize("kind", sorted(OPERATIONS))
def test_both_clients_check_what_they_are_answered(
    server: EmbeddedServer, kind: str, in_flight: int
) -> None:
    client = KazooClient(hosts=server.hosts)
    client.start(timeout=20)
    try:
        with Link(server.port) as link:
            for by_socket in (True, False):
                operation = OPERATIONS[kind](link, FOLDER)
                taken = (
                    clients.by_socket(link, operation, in_flight, 0.05)
                    if by_socket
                    else clients.by_kazoo(client, operation, in_flight, 0.05)
                )
                operation.tidy(link, taken.done)
                assert taken.done >= in_flight
                assert taken.wrong == 0
                assert len(taken.latencies_s) == (taken.done if in_flight == 1 else 0)
    finally:
        client.stop()
        client.close()


def test_a_wrong_answer_is_counted(server: EmbeddedServer) -> None:
    with Link(server.port) as link:
        folder = b"/bench/spoiled"
        reading, writing = OPERATIONS["get"](link, folder), OPERATIONS["set"](link, folder)
        link.expect(wire.SET_DATA, wire.set_body(folder + b"/n03", b"somebody else's"))
        taken = clients.by_socket(link, reading, 16, 0.05)
        assert 0 < taken.wrong < taken.done
        taken = clients.by_socket(link, writing, 16, 0.05)
        assert 0 < taken.wrong < taken.done


def test_an_error_is_counted(server: EmbeddedServer) -> None:
    with Link(server.port) as link:
        folder = b"/bench/removed"
        reading = OPERATIONS["get"](link, folder)
        link.expect(wire.DELETE, wire.delete_body(folder + b"/n03"))
        taken = clients.by_socket(link, reading, 1, 0.05)
        assert 0 < taken.wrong < taken.done


def test_a_lost_or_changed_node_is_missed(server: EmbeddedServer) -> None:
    count = 200
    with Link(server.port) as link:
        _, wrong = fill.fill(link, count)
        assert wrong == 0
        assert fill.missing(link, count, seed=1) == 0
        link.expect(wire.SET_DATA, wire.set_body(fill.path_of(7), b"changed"))
        assert fill.missing(link, count, seed=1) == 1
        link.expect(wire.DELETE, wire.delete_body(fill.path_of(7)))
        assert fill.missing(link, count, seed=1) == 2  # not among the names, and not readable


def test_a_generators_failure_reaches_the_driver_with_its_job() -> None:
    with LoadGenerator("lost") as generator, pytest.raises(LoadFailed, match=r"warm.*refused"):
        generator.call("warm", port=1, seconds=0.1)


def test_a_snapshot_is_seen_once_it_is_finished(tmp_path: Path) -> None:
    old = tmp_path / "data" / "version-2"
    old.mkdir(parents=True)
    for path in (old / "snapshot.1f", tmp_path / "data" / "snapshot-00ff"):
        path.touch()
    (tmp_path / "data" / "snapshot-0100.tmp").touch()
    assert snapshots_in(tmp_path) == {"snapshot.1f", "snapshot-00ff"}


@pytest.mark.parametrize(
    ("goal", "ours", "theirs", "verdict"),
    [
        (PIPELINED, 70.0, 100.0, "reached"),
        (PIPELINED, 69.0, 100.0, "missed"),
        (FASTER, 0.9, 1.0, "reached"),
        (FASTER, 1.0, 1.0, "missed"),
        (FASTER, 1.0, None, "not measured"),
        (Goal(50, at_least=False, is_ratio=False), 49.0, None, "reached"),
        (Goal(50, at_least=False, is_ratio=False), 50.0, 900.0, "missed"),
    ],
)
def test_a_miss_is_a_miss(goal: Goal, ours: float, theirs: float | None, verdict: str) -> None:
    row = Row("section", "what", "ms", goal)
    row.add("ours", ours)
    if theirs is not None:
        row.add("zookeeper", theirs)
    assert row.verdict == verdict
    console = Console(width=200)
    with console.capture() as shown:
        console.print(table(Report({}, "tiny", [row])))
    assert verdict in shown.get()


def test_rounds_come_to_their_middle_and_stalls_to_their_worst() -> None:
    row = Row("section", "what", "ms")
    for value in (5.0, 1.0, 900.0):
        row.add("ours", value)
    assert row.value("ours") == 5.0
    assert dataclasses.replace(row, worst=True).value("ours") == 900.0


def test_a_stall_counts_once_for_every_request_that_it_delayed() -> None:
    assert with_the_unsent(0.001, 0.002) == [0.001]
    assert with_the_unsent(0.007, 0.002) == pytest.approx([0.007, 0.005, 0.003, 0.001])


def test_a_percentile_is_one_of_the_values() -> None:
    values = [float(number) for number in range(1, 1001)]
    assert percentile(values, 0.5) == 500
    assert percentile(values, 0.999) == 999
    assert percentile(values, 1.0) == 1000
    assert percentile([3.0], 0.01) == 3.0
