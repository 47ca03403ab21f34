"""A user's function as a subscriber: each record at least once, poison never stops the partition,
and what it publishes is a version."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import topics
from holdfast.cluster import topics as cluster_topics
from holdfast.control.decide.facts import Phase
from holdfast.models.registry import Registry
from holdfast.topics.connection import Connection
from tests.integration.clusters import Home
from tests.unit.models.stage import onnx_file
from tests.waiting import PATIENCE_S, eventually

TRIES = 2
SHARED = "/dev/shm"
HANDLER = """
    import os, signal
    from pathlib import Path
    from holdfast import models

    marks = Path({marks!r})

    def fn(record):
        n = record.value["n"]
        with (marks / "calls").open("a") as calls:
            calls.write(f"{{n}}\\n")
        if n == 3:
            raise ValueError("three is poison")
        if n == {deadly}:
            os.kill(os.getpid(), signal.SIGKILL)
        if n == 7 and (marks / "calls").read_text().split().count("7") < 2:
            raise KeyError("not yet")
        if n == 8:
            models.publish("half", {onnx!r}, alias="prod")
        (marks / f"{{n}}.done").touch()
"""


@pytest.fixture
def up(home: Home) -> Iterator[Home]:
    """Workers have a /tmp of their own: what they share with the test lies elsewhere."""
    with tempfile.TemporaryDirectory(dir=SHARED) as folder:
        home.marks = Path(folder)
        home.up(supervised=True)
        yield home


def connection(home: Home) -> Connection:
    with home.cluster.session() as session:
        return cluster_topics.open(home.cluster, session)


def calls(home: Home) -> Counter[str]:
    mark = home.marks / "calls"
    return Counter(mark.read_text().split()) if mark.exists() else Counter()


def handled(up: Home, tmp_path: Path, deadly: int, dead: int) -> dict[int, topics.Record]:
    """Ten records are handled, of which these do not work; the dead letters by their offset."""
    code = tmp_path / "code"
    code.mkdir()
    model = up.marks / "half.onnx"
    model.write_bytes(onnx_file(0.5))
    text = textwrap.dedent(HANDLER).format(marks=str(up.marks), onnx=str(model), deadly=deadly)
    (code / "handler.py").write_text(text)
    with connection(up) as cluster:
        cluster.admin.create("orders", partitions=1)
        producer = cluster.producer(codec=topics.BYTES)
        for n in range(10):
            value = b"no JSON" if n == 4 else json.dumps({"n": n}).encode()
            producer.send("orders", value, key=b"k", headers={"kind": b"order"}).result(PATIENCE_S)
        words = ("subscribe", "orders", "--run", f"{code}/handler.py:fn", "--group", "g")
        shown = up.command(*words, "--tries", str(TRIES), "--cpu", "0.1", "--detach", "--json")
        assert json.loads(shown)["name"] == "subscribe.g"
        good = [n for n in range(10) if n not in (3, 4, deadly)]
        eventually(
            lambda: all((up.marks / f"{n}.done").exists() for n in good),
            "all good records are handled",
            2 * PATIENCE_S,
        )
        reader = cluster.consumer("orders.dead", start="earliest", codec=topics.BYTES)
        letters: list[topics.Record] = []

        def all_dead() -> bool:
            letters.extend(reader.poll(0.5))
            return len(letters) >= dead

        eventually(all_dead, f"{dead} letters are dead", PATIENCE_S)
        # A clean end loses and repeats nothing.
        up.command("stop", "subscribe.g", "--wait")
        assert [each.lag for each in cluster.admin.lag("g")] == [0]
    assert {each.headers["holdfast.tries"] for each in letters} == {str(TRIES).encode()}
    return {int(each.headers["holdfast.offset"] or 0): each for each in letters}


def test_each_record_is_handled_and_poison_goes_to_dead_letters_with_its_reason(
    up: Home, tmp_path: Path
) -> None:
    letters = handled(up, tmp_path, deadly=-1, dead=2)
    assert sorted(letters) == [3, 4]
    headers = letters[3].headers
    assert headers["holdfast.reason"] == b"ValueError: three is poison"
    assert b"in fn" in (headers["holdfast.traceback"] or b"")
    assert headers["kind"] == b"order" and letters[3].key == b"k"
    assert letters[4].headers["holdfast.error"] == b"Corrupt" and letters[4].raw == b"no JSON"
    made = calls(up)
    assert made["3"] == TRIES and made["7"] == TRIES
    with up.control() as control:
        assert control.job("subscribe.g").status.phase is Phase.STOPPED
    with up.cluster.session() as session:
        found = Registry(session, up.cluster.blobs(), "a test").resolve("half@prod")
        assert found.version.number == 1


@pytest.mark.engines
def test_a_record_that_kills_the_process_is_given_up_and_the_partition_goes_on(
    up: Home, tmp_path: Path
) -> None:
    letters = handled(up, tmp_path, deadly=5, dead=3)
    assert sorted(letters) == [3, 4, 5]
    reason = letters[5].headers["holdfast.reason"]
    assert reason == b"the process that handled it ended, 2 times"
    assert TRIES <= calls(up)["5"] <= TRIES + 1


def test_ctrl_c_ends_a_subscription_after_the_record_under_way(up: Home, tmp_path: Path) -> None:
    handler = f"""
        import time
        from pathlib import Path
        marks = Path({str(up.marks)!r})

        async def fn(record):
            (marks / f"{{record.value}}.begun").touch()
            time.sleep(1.0)
            (marks / f"{{record.value}}.done").touch()
            print("handled", record.value)
    """
    (tmp_path / "slow.py").write_text(textwrap.dedent(handler))
    with connection(up) as cluster:
        cluster.admin.create("slow", partitions=1)
        producer = cluster.producer(codec=topics.JSON)
        for n in range(3):
            producer.send("slow", n).result(PATIENCE_S)
        words = ["subscribe", "slow", "--run", f"{tmp_path}/slow.py:fn", "--group", "s"]
        words += ["--cpu", "0.1", "--cluster", str(up.cluster.folder)]
        with subprocess.Popen(
            [sys.executable, "-m", "holdfast", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        ) as command:
            eventually((up.marks / "1.begun").exists, "the second is begun", PATIENCE_S)
            command.send_signal(signal.SIGINT)
            output, _ = command.communicate(timeout=PATIENCE_S)
        assert command.returncode == 0, output
        assert (up.marks / "1.done").exists(), output
        assert not (up.marks / "2.begun").exists(), output
        assert [each.lag for each in cluster.admin.lag("s")] == [1]
