"""A follower of logs gets every line once, however slowly he reads and whenever the job ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.agent.log_files import OUT, LogPosition, Piece, Source
from holdfast.client.logs import CLIENT_LOG_PIECES_MAX, LogStream, here, query_of
from holdfast.control.decide.facts import JobRecord, Phase, RecordedStatus
from holdfast.control.decide.spec import JobSpec

JOB = JobRecord(JobSpec("it", ("x",)), 1.0, RecordedStatus(Phase.RUNNING, "", 1.0))
COUNT = 3 * CLIENT_LOG_PIECES_MAX


@dataclass
class Reading:
    """A machine's logs: what was given once is not given again."""

    node: str = "n1"
    address: str = ""
    given: int = 0

    async def pieces(self, *, follow: bool) -> AsyncGenerator[Piece, None]:
        while self.given < COUNT:
            self.given += 1
            yield Piece(Source(1, OUT), LogPosition(1, self.given), f"{self.given}\n".encode())
        if follow:
            await asyncio.Event().wait()


def test_a_follower_who_reads_slowly_loses_nothing_when_the_job_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("holdfast.client.logs._LOOK_S", 0.01)
    reading, ended = Reading(), threading.Event()

    def job(_name: str) -> JobRecord:
        if reading.given < CLIENT_LOG_PIECES_MAX + 2:
            return JOB  # the queue is not full yet
        ended.set()
        return replace(JOB, status=RecordedStatus(Phase.SUCCEEDED, "", 2.0))

    found: Any = SimpleNamespace(
        down=False, plane=SimpleNamespace(job=job), credentials=lambda: None, members=dict
    )
    query = query_of(JOB, worker=None, lines=None, stdout=True, stderr=True)
    stream = LogStream(found, JOB, query, lambda _words: None)
    monkeypatch.setattr(stream, "_readings", lambda _credentials: {"n1": reading})
    lines = here(stream.batches(follow=True))
    first = next(lines)
    assert ended.wait(60.0), "it reads on while nobody takes, until the queue is full"
    assert [first.text, *(line.text for line in lines)] == [str(n) for n in range(1, COUNT + 1)]
