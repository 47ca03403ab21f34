"""`holdfast topics` on our broker and on a real Kafka: the same words, the same answers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from holdfast import topics
from holdfast.cli.main import app
from holdfast.wire.errors import HoldfastError
from tests.conftest import require_part
from tests.servers.broker import BrokerServer
from tests.servers.kafka import KafkaServer, kafka_missing
from tests.waiting import PATIENCE_S, eventually


@pytest.fixture(scope="module", params=["ours", "kafka"])
def address(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("server")
    if request.param == "ours":
        with BrokerServer(folder) as ours:
            yield f"kafka://{ours.hosts}?prefix=team."
        return
    require_part(kafka_missing())
    with KafkaServer(folder) as theirs:
        yield f"kafka://{theirs.hosts}?prefix=team."


class Shell:
    """Runs `holdfast topics` against one address."""

    def __init__(self, address: str) -> None:
        self.address = address

    def __call__(self, *words: str, stdin: str = "") -> str:
        done = CliRunner().invoke(app, ["topics", *words, "-a", self.address], input=stdin)
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return done.stdout

    def json(self, *words: str, stdin: str = "") -> Any:
        return json.loads(self(*words, "--json", stdin=stdin))

    def refused(self, *words: str) -> HoldfastError:
        with pytest.raises(HoldfastError) as raised:
            self(*words)
        return raised.value


@pytest.fixture
def shell(address: str) -> Shell:
    return Shell(address)


def test_a_topic_is_made_written_read_described_changed_and_deleted(shell: Shell) -> None:
    made = shell.json("create", "clicks", "--partitions", "3", "--set", "retention.ms=3600000")
    assert (made["name"], made["partitions"], made["copies"]) == ("clicks", 3, 1)
    assert "clicks" in shell("list")
    lines = 'a:{"page": 1}\nb:hello\na:again\na:third\n'
    words = ("produce", "clicks", "--key-separator", ":", "--header", "from=shell")
    assert shell.json(*words, stdin=lines) == {"topic": "clicks", "records": 4}

    read = shell.json("tail", "clicks")["records"]
    assert sorted(str(one["value"]) for one in read if one["key"] == "a") == [
        "again",
        "third",
        "{'page': 1}",
    ]
    assert {one["headers"]["from"] for one in read} == {"shell"}
    assert [one["value"] for one in read if one["key"] == "b"] == ["hello"]
    assert len(shell.json("tail", "clicks", "-n", "2")["records"]) == 2
    assert len(shell.json("tail", "clicks", "--from", "1h")["records"]) == 4
    shown = shell("tail", "clicks")
    assert '"page": 1' in shown
    assert "again" in shown

    described = shell.json("describe", "clicks")
    assert described["configs"]["retention.ms"] == "3600000"
    (hottest,) = {one["partition"] for one in read if one["key"] == "a"}
    assert described["heat"]["hottest"] == hottest
    assert described["heat"]["keys"][0]["key"] == "a"
    assert described["heat"]["keys"][0]["share"] == 0.75
    assert "hottest" in shell("describe", "clicks")

    changed = shell.json("alter", "clicks", "--partitions", "4", "--unset", "retention.ms")
    assert changed["partitions"] == 4
    assert "retention.ms" not in changed["configs"]
    shell("delete", "clicks")
    assert "clicks" not in [one["name"] for one in shell.json("list")["topics"]]


def test_a_groups_lag_is_told_by_partition_and_it_can_be_set_back(shell: Shell) -> None:
    shell("create", "orders", "--partitions", "2")
    lines = "".join(f"{number}:order {number}\n" for number in range(20))
    shell("produce", "orders", "--key-separator", ":", stdin=lines)
    with topics.connect(shell.address) as cluster:
        consumer = cluster.consumer("orders", group="shipping")
        read = 0
        deadline_s = time.monotonic() + PATIENCE_S
        while read < 20 and time.monotonic() < deadline_s:
            read += len(consumer.poll(0.5))
        assert read == 20
        consumer.commit()
        refused = shell.refused("reset", "shipping", "orders", "--to", "earliest")
        assert refused.fix, "it has a member"
    (group,) = [one for one in shell.json("groups")["groups"] if one["name"] == "shipping"]
    assert [one["lag"] for one in group["lag"]] == [0, 0]
    shell("reset", "shipping", "orders", "--to", "earliest")
    (group,) = shell.json("groups", "shipping")["groups"]
    assert sum(one["lag"] for one in group["lag"]) == 20
    assert all(one["committed"] == 0 for one in group["lag"])
    assert "shipping" in shell("groups")
    assert "committed" in shell("groups", "shipping")
    done = shell.json("reset", "shipping", "orders", "--offset", "0=3", "--offset", "1=4")
    assert [one["offset"] for one in done["positions"]] == [3, 4]
    shell("reset", "shipping", "orders", "--to", "1h")
    assert all(
        one["committed"] == 0 for one in shell.json("groups", "shipping")["groups"][0]["lag"]
    )


def test_what_is_wrong_is_told_with_the_command_that_mends_it_and_makes_no_topic(
    shell: Shell,
) -> None:
    shell("create", "there")
    for words, says, fix in (
        (("tail", "ther"), "there is no topic ther", "did you mean there?"),
        (("describe", "absent"), "there is no topic absent", "holdfast topics list"),
        (("delete", "absent"), "there is no topic absent", "holdfast topics list"),
        (("create", "there"), "topic 'there' cannot be created", "read again"),
        (("groups", "nobody"), "there is no group nobody", "holdfast topics groups"),
        (("reset", "g", "there"), "a group is reset to a place", "--to earliest"),
        (("reset", "g", "there", "--to", "noon"), "--to noon is no place", "--to earliest"),
        (("reset", "g", "there", "--offset", "a=b"), "is not PARTITION=OFFSET", "--offset 0=120"),
        (("alter", "there"), "nothing of topic there", "holdfast topics alter there"),
        (("alter", "there", "--set", "x"), "--set x is not NAME=VALUE", "--set"),
    ):
        error = shell.refused(*words)
        assert says in error.what, words
        assert fix in error.fix, words
    with pytest.raises(HoldfastError, match="line 2 has no ':' after its key"):
        shell("produce", "there", "--key-separator", ":", stdin="a:1\nb\n")
    assert [one["name"] for one in shell.json("list")["topics"] if "abs" in one["name"]] == []
    shell("delete", "there")


def test_tail_goes_on_with_what_comes(shell: Shell) -> None:
    shell("create", "following")
    shell("produce", "following", stdin="before\n")
    words = ("topics", "tail", "following", "-f", "--json", "-a", shell.address)
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast", *words], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["value"] == "before"
        shell("produce", "following", stdin="after\n")
        assert json.loads(process.stdout.readline())["value"] == "after"
    finally:
        process.kill()
        process.wait()
    shell("delete", "following")


def test_a_broker_is_served_open_on_loopback_which_it_says_and_nowhere_else(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "holdfast", "topics", "serve", "--data", str(tmp_path / "data")]
    refused = subprocess.run(
        [*words, "--listen", "0.0.0.0:0"], capture_output=True, text=True, check=False, timeout=60
    )
    assert refused.returncode == 1
    assert "a broker on 0.0.0.0 needs users" in refused.stderr
    assert "holdfast topics serve --sasl-users" in refused.stderr
    log = tmp_path / "log"
    with log.open("wb") as out:
        process = subprocess.Popen([*words, "--listen", "127.0.0.1:0"], stdout=out, stderr=out)
    try:
        server = tmp_path / "data" / "server.json"
        eventually(server.exists, "it listens", PATIENCE_S)
        where = json.loads(server.read_text())["address"]
        Shell(f"kafka://{where}")("create", "served")
        assert "every process of this machine may read and write" in log.read_text()
    finally:
        process.terminate()
        assert process.wait(PATIENCE_S) == 0


def test_what_checks_of_a_damaged_folder_is_saved_and_what_is_lost_is_told(tmp_path: Path) -> None:
    with BrokerServer(tmp_path / "server") as broker:
        shell = Shell(f"kafka://{broker.hosts}")
        for value in ("one", "two", "three"):
            shell("produce", "kept", stdin=f"{value}\n")
    (segment,) = broker.data.glob("logs/*/0/*.log")
    raw = segment.read_bytes()
    segment.write_bytes(raw.replace(b"two", b"2wo"))
    new = tmp_path / "new" / "data"
    words = ("topics", "salvage", str(broker.data), str(new))
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "kept[0]: offset 1" in done.stdout
    with BrokerServer(tmp_path / "new") as saved:
        read = Shell(f"kafka://{saved.hosts}").json("tail", "kept")["records"]
    assert [(one["offset"], one["value"]) for one in read] == [(0, "one"), (2, "three")]


def test_ctrl_c_ends_a_command_though_the_broker_hangs(tmp_path: Path) -> None:
    with BrokerServer(tmp_path / "server") as server:
        address = f"kafka://{server.hosts}"
        shell = Shell(address)
        shell("create", "orders")
        os.kill(server.pid, signal.SIGSTOP)
        try:
            for words in (("produce", "orders"), ("list",)):
                command = subprocess.Popen(
                    [sys.executable, "-m", "holdfast", "topics", *words, "-a", address],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
                assert command.stdin is not None
                command.stdin.write("one\n")
                command.stdin.flush()
                eventually(partial(connected, command.pid, address), "it has reached the broker")
                command.send_signal(signal.SIGINT)
                began_s = time.monotonic()
                _, told = command.communicate(timeout=PATIENCE_S)
                assert command.returncode == 130, told
                # Far below the half minute that an answer may take.
                assert time.monotonic() - began_s < 15.0
        finally:
            os.kill(server.pid, signal.SIGCONT)


def connected(pid: int, address: str) -> bool:
    """Whether the process has a connection to that port."""
    port = f":{int(address.rpartition(':')[2]):04X}"
    opened: set[str] = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            opened.add(str(link.readlink()))
    rows = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    return any(
        row[2].endswith(port) and row[3] == "01" and f"socket:[{row[9]}]" in opened for row in rows
    )


def test_what_no_group_can_go_on_from_is_refused(shell: Shell) -> None:
    shell("create", "short", "--partitions", "1")
    shell("produce", "short", stdin="a\nb\nc\n")
    shell("reset", "late", "short", "--offset", "0=3")
    for wrong in ("0=4", "1=0"):
        assert (
            "cannot go on at offset"
            in shell.refused("reset", "late", "short", "--offset", wrong).what
        )
    refused = shell.refused("alter", "short", "--set", "retention.ms=1", "--unset", "retention.ms")
    assert refused.fix == "give one of the two"
