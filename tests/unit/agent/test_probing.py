"""Probes of real sockets and real commands, the unfriendly ones too."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from holdfast.agent.events import Asked, BeginProbes, Event, Key, Probed
from holdfast.agent.probing import Prober
from holdfast.wire.probes import Probe, ProbeKind
from tests.unit.agent.driving import start
from tests.waiting import eventually

HOST = "127.0.0.1"
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def asked(probe: Probe, folder: Path, ports: dict[str, int] | None = None, count: int = 1) -> Any:
    """The first so many answers."""

    async def ask() -> list[Probed]:
        heard: list[Probed] = []
        enough = asyncio.Event()

        def tell(event: Event) -> None:
            assert isinstance(event, Probed)
            heard.append(event)
            if len(heard) >= count:
                enough.set()

        def died(error: BaseException) -> None:
            raise AssertionError from error

        launch = {"cwd": str(folder), "environment": {"PATH": os.defpath, "MINE": "yes"}}
        prober = Prober(HOST, lambda _key: launch, tell, died)
        order = start(ready=probe, ports=dict.fromkeys(ports or {}, 0))
        prober.begin(BeginProbes(order, ports or {}))
        async with asyncio.timeout(30):
            await enough.wait()
        await prober.close()
        return heard

    return ask()


@asynccontextmanager
async def server(serve: Serve) -> AsyncIterator[int]:
    there = await asyncio.start_server(serve, HOST, 0)
    async with there:
        yield there.sockets[0].getsockname()[1]


async def answers(line: bytes, then_s: float = 0.0) -> tuple[bool, str]:
    """What comes of a server that writes this, and then keeps the line open."""
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        await reader.readuntil(b"\r\n\r\n")
        writer.write(line)
        await asyncio.sleep(then_s)

    async with server(serve) as port:
        probe = Probe(ProbeKind.HTTP, "http", "/ok", timeout_s=0.5)
        (found,) = await asked(probe, Path("/"), {"http": port})
        for writer in writers:
            writer.close()
    return found.passed, found.said


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n", ""),
        (b"HTTP/1.1 204 \r\n", ""),
        (b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\n\r\n", ""),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\nslow", ""),
        (b"HTTP/1.1 503 Busy\r\n\r\n", "status 503"),
        (b"-ERR unknown command\r\n", "that is not HTTP"),
        (b"HTTP/1.1 200", "no answer within 0.5 s"),
        (b"x" * 100_000 + b"\r\n", "its first line is too long"),
    ],
)
def test_an_answer_over_http_is_judged_by_its_first_line(line: bytes, said: str) -> None:
    begun_s = time.monotonic()
    passed, why = asyncio.run(answers(line, then_s=0.6))
    assert (passed, said in why) == (not said, True), why
    assert time.monotonic() - begun_s < 60


def test_a_port_where_nobody_listens_is_refused_and_one_where_somebody_does_passes() -> None:
    async def hangs_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async def both() -> None:
        probe = Probe(ProbeKind.TCP, "db", every_s=0.1)
        async with server(hangs_up) as port:
            (found,) = await asked(probe, Path("/"), {"db": port})
            assert found.passed
            http = Probe(ProbeKind.HTTP, "db", "/")
            (found,) = await asked(http, Path("/"), {"db": port})
            assert not found.passed
        (found,) = await asked(probe, Path("/"), {"db": port})
        assert "Connection refused" in found.said

    asyncio.run(both())


def test_a_command_has_the_workers_folder_environment_and_ports(tmp_path: Path) -> None:
    check = 'test "$MINE" = yes && test "$1" = 4711 && test "$PWD" -ef "$2"'
    words = ("sh", "-c", check, "sh", "{port.db}", str(tmp_path))
    (found,) = asyncio.run(asked(Probe(ProbeKind.EXEC, command=words), tmp_path, {"db": 4711}))
    assert found.passed, found.said


def test_a_command_that_fails_says_its_last_words_and_one_that_is_not_there_says_so(
    tmp_path: Path,
) -> None:
    line = ("sh", "-c", "echo first; echo no master >&2; exit 3")
    (found,) = asyncio.run(asked(Probe(ProbeKind.EXEC, command=line), tmp_path))
    assert (found.passed, found.said) == (False, "ready: sh ended with status 3: no master")
    (found,) = asyncio.run(asked(Probe(ProbeKind.EXEC, command=("./nothing",)), tmp_path))
    assert found.said == "ready: ./nothing: No such file or directory"


def test_a_command_that_hangs_or_prints_without_end_is_ended_with_all_that_it_started(
    tmp_path: Path,
) -> None:
    mark = f"holdfast-probe-{os.getpid()}"
    for script in ("sleep 600 & wait", "exec yes", f"sleep 600 & exit 0 # {mark}"):
        line = ("sh", "-c", f"echo $$ >> pids; {script}")
        probe = Probe(ProbeKind.EXEC, command=line, timeout_s=1.0)
        (found,) = asyncio.run(asked(probe, tmp_path))
        assert found.passed is script.startswith("sleep 600 & exit"), found
    for pid in (tmp_path / "pids").read_text().split():
        left = [
            entry
            for entry in Path("/proc").iterdir()
            if entry.name.isdigit() and _session(entry) == int(pid)
        ]
        eventually(partial(_none_of, left, int(pid)), "nothing of its session is left")


def _none_of(entries: list[Path], session: int) -> bool:
    return not any(_session(entry) == session for entry in entries)


def _session(entry: Path) -> int:
    try:
        fields = (entry / "stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return -1
    return -1 if fields[0] == b"Z" else int(fields[3])


def test_until_it_has_passed_once_a_probe_is_asked_often_and_then_as_its_file_says(
    tmp_path: Path,
) -> None:
    """Three answers come within seconds though it is to be asked once an hour."""
    line = (sys.executable, "-c", "import os; os.path.exists('x') or 1/0")
    probe = Probe(ProbeKind.EXEC, command=line, every_s=3_600.0, timeout_s=20.0)
    found = asyncio.run(asked(probe, tmp_path, count=3))
    assert [each.passed for each in found] == [False, False, False]
    assert {each.asked for each in found} == {Asked.READY}
    assert {each.key for each in found} == {Key("job", 1)}
