"""Requests at a constant rate, whatever the server does: an open loop.

    run(("127.0.0.1", 8080), "/v2/models/m/infer", body, rate=500, seconds=10)    # here
    with Steady(("127.0.0.1", 8080), [Shot(path, body)], rate=500) as load:       # its own process
        ...
        part = load.cut()      # what was answered since the start, or since the last cut
        ...
    load.total                 # everything

A latency begins when the request was due, not when it was sent: a server that stands still for a
second has kept as many requests waiting as fall into that second. Every reply is checked, by
default for a status of 2xx. Nothing is retried. Memory does not grow with the number of requests.
"""

from __future__ import annotations

import multiprocessing
import os
import select
import time
from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Final

from bench.serving.connections import Address, ConnectionBroken, KeepAliveConnection
from bench.serving.histogram import Histogram
from bench.serving.replies import Check, Reply, Shot, anything

CONNECTIONS: Final = 32
TIMEOUT_S: Final = 10.0
# How often the generator looks for requests that have had no answer for too long.
LOOK_S: Final = 0.05
# Different texts of failures that are kept; the rest is counted as one.
REASONS_MAX: Final = 32
NEVER: Final = 1 << 62  # a number that no request has
# A generator in its own process has Python and this module to load before it begins; on a machine
# with strangers on it that has taken more than a minute.
START_S: Final = 300.0


def _by_status() -> dict[int, Histogram]:
    return defaultdict(Histogram)


@dataclass
class Span:
    """When a version answered, on the machine's monotonic clock."""

    first_sent_s: float
    first_answered_s: float
    last_sent_s: float = 0.0
    last_answered_s: float = 0.0


@dataclass
class Result:
    """What became of the requests. `sent` are those that have an outcome: answered or failed.

    `late`: how long after its time the generator itself got to send a request although a
    connection was free; `starved`: how many found none free. `unsent`: were due at the end, and
    none became free for them even then. `stolen_s`: of these seconds the host gave so many of each
    core to others; whoever measures fills it in.
    """

    sent: int = 0
    failed: int = 0
    starved: int = 0
    unsent: int = 0
    seconds: float = 0.0
    stolen_s: float = 0.0
    statuses: Counter[int] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    versions: dict[str, Span] = field(default_factory=dict)
    by_version: Counter[str] = field(default_factory=Counter)
    latencies: Histogram = field(default_factory=Histogram)
    by_status: dict[int, Histogram] = field(default_factory=_by_status)
    late: Histogram = field(default_factory=Histogram)

    def fail(self, reason: str) -> None:
        self.failed += 1
        if len(self.reasons) >= REASONS_MAX and reason not in self.reasons:
            reason = "other reasons"
        self.reasons[reason] += 1

    def saw(self, reply: Reply, line: KeepAliveConnection, now_s: float) -> None:
        self.by_version[reply.version] += 1
        span = self.versions.get(reply.version)
        if span is None:
            span = self.versions[reply.version] = Span(line.sent_s, now_s)
        span.last_sent_s = max(span.last_sent_s, line.sent_s)
        span.last_answered_s = now_s

    def merge(self, other: Result) -> None:
        self.sent += other.sent
        self.failed += other.failed
        self.starved += other.starved
        self.unsent += other.unsent
        self.seconds += other.seconds
        self.stolen_s += other.stolen_s
        self.statuses += other.statuses
        self.reasons += other.reasons
        self.by_version += other.by_version
        self.latencies.merge(other.latencies)
        for status, latencies in other.by_status.items():
            self.by_status[status].merge(latencies)
        self.late.merge(other.late)
        for version, span in other.versions.items():
            known = self.versions.setdefault(version, span)
            known.first_sent_s = min(known.first_sent_s, span.first_sent_s)
            known.first_answered_s = min(known.first_answered_s, span.first_answered_s)
            known.last_sent_s = max(known.last_sent_s, span.last_sent_s)
            known.last_answered_s = max(known.last_answered_s, span.last_answered_s)

    def p_ms(self, percent: float) -> float:
        return self.latencies.percentile_ms(percent / 100)

    @property
    def rate(self) -> float:
        return self.sent / self.seconds if self.seconds else 0.0

    @property
    def stolen(self) -> float:
        """The share of the cores that the host gave to others."""
        return self.stolen_s / self.seconds if self.seconds else 0.0


class Generator:
    """The loop. `turn` waits for the next thing to do and does it."""

    def __init__(
        self,
        address: Address,
        shots: Sequence[Shot],
        rate: float,
        check: Check = anything,
        connections: int = CONNECTIONS,
        timeout_s: float = TIMEOUT_S,
        count: int = NEVER,
    ) -> None:
        self._address, self._rate, self._check = address, rate, check
        self._raw = [shot.raw(f"{address[0]}:{address[1]}") for shot in shots]
        self._room, self._timeout_s = connections, timeout_s
        self._poller = select.epoll()
        self._lines: dict[int, KeepAliveConnection] = {}
        self._idle: deque[KeepAliveConnection] = deque()
        self._number = 0  # of the next request
        self._last = count  # from this number on none is sent
        self._starved = False
        self.begun_s = self._cut_s = self._looked_s = time.monotonic()
        self.result = Result()

    def turn(self, until_s: float, also: Sequence[int] = ()) -> bool:
        """Send what is due, and take what comes, until something has happened or the time is
        over; whether one of the other files `also` is ready."""
        now_s = time.monotonic()
        due_s = self._send_due(now_s)
        wait_s = min(due_s, until_s, now_s + LOOK_S) - time.monotonic()
        # epoll's own time-outs are whole milliseconds; those of select are not.
        ready, _, _ = select.select([self._poller.fileno(), *also], [], [], max(wait_s, 0.0))
        if ready:
            for number, flags in self._poller.poll(0):
                self._on_event(self._lines[number], flags)
        self._look(time.monotonic())
        return any(number in ready for number in also)

    def settle(self, until_s: float) -> None:
        """Send what was due until then, and nothing more; wait for all answers."""
        due = round((until_s - self.begun_s) * self._rate)
        self._last = max(self._number, min(self._last, due))
        patience_s = time.monotonic() + self._timeout_s
        while self._number < self._last and time.monotonic() < patience_s:
            self.turn(patience_s)
        self.result.unsent += self._last - self._number
        self._last = 0
        while any(line.busy for line in self._lines.values()):
            self.turn(time.monotonic() + LOOK_S)

    def cut(self) -> Result:
        """What has an outcome since the last cut."""
        found, self.result = self.result, Result()
        now_s = time.monotonic()
        found.seconds, self._cut_s = now_s - self._cut_s, now_s
        return found

    def close(self) -> None:
        for line in self._lines.values():
            line.close()
        self._poller.close()

    def _send_due(self, now_s: float) -> float:
        """When the next one is due."""
        while self._number < self._last:
            due_s = self.begun_s + self._number / self._rate
            if due_s > now_s:
                self._starved = False
                return due_s
            if not self._idle and len(self._lines) >= self._room:
                self._starved = True
                return now_s + LOOK_S  # an answer will wake us
            if self._starved:
                self.result.starved += 1
            else:
                self.result.late.add(now_s - due_s)
            self._send(due_s)
            now_s = time.monotonic()
        return now_s + LOOK_S

    def _send(self, due_s: float) -> None:
        shot = self._number % len(self._raw)
        self._number += 1
        try:
            line = self._idle.popleft() if self._idle else self._connect()
        except ConnectionBroken as error:
            self._failed(due_s, str(error))
            return
        try:
            line.send(self._raw[shot], shot, due_s, time.monotonic())
        except ConnectionBroken as error:
            self._drop(line, str(error))

    def _connect(self) -> KeepAliveConnection:
        line = KeepAliveConnection.to(self._address, self._poller)
        self._lines[line.socket.fileno()] = line
        return line

    def _on_event(self, line: KeepAliveConnection, flags: int) -> None:
        try:
            reply = line.on_event(flags)
        except ConnectionBroken as error:
            self._drop(line, str(error))
            return
        if reply is None:
            return
        now_s = time.monotonic()
        result = self.result
        result.sent += 1
        result.statuses[reply.status] += 1
        result.latencies.add(now_s - line.due_s)
        result.by_status[reply.status].add(now_s - line.due_s)
        result.saw(reply, line, now_s)
        wrong = self._check(reply)
        if wrong:
            result.fail(wrong)
        line.shot = -1
        if reply.closes:
            self._drop(line, "")
        else:
            self._idle.append(line)

    def _drop(self, line: KeepAliveConnection, why: str) -> None:
        """Close it; what was under way on it has failed."""
        del self._lines[line.socket.fileno()]
        line.close()
        if line.busy:
            self._failed(line.due_s, why)
        elif line in self._idle:
            self._idle.remove(line)

    def _failed(self, due_s: float, why: str) -> None:
        self.result.sent += 1
        self.result.latencies.add(time.monotonic() - due_s)
        self.result.fail(f"connection: {why}")

    def _look(self, now_s: float) -> None:
        if now_s < self._looked_s + LOOK_S:
            return
        self._looked_s = now_s
        for line in list(self._lines.values()):
            if line.busy and now_s > line.sent_s + self._timeout_s:
                self._drop(line, f"no answer within {self._timeout_s:g} s")


def run(
    address: Address,
    path: str,
    body: bytes,
    rate: float,
    seconds: float,
    check: Check = anything,
    *,
    headers: dict[str, str] | None = None,
    connections: int = CONNECTIONS,
    timeout_s: float = TIMEOUT_S,
) -> Result:
    """The same request at a constant rate, from this thread, for as long."""
    shots = [Shot(path, body, headers or {})]
    count = max(1, round(rate * seconds))
    generator = Generator(address, shots, rate, check, connections, timeout_s, count)
    try:
        end_s = generator.begun_s + seconds
        while time.monotonic() < end_s:
            generator.turn(end_s)
        generator.settle(end_s)
        found = generator.cut()
        found.seconds = seconds
        return found
    finally:
        generator.close()


class Steady:
    """A generator in a process of its own, so that nothing here delays it. `shots` are sent in
    turn; `check` must be a function of a module, or a value of a class with `__call__`: it goes to
    the other process. `core`: the only core it may use."""

    def __init__(
        self,
        address: Address,
        shots: Sequence[Shot],
        rate: float,
        check: Check = anything,
        *,
        connections: int = CONNECTIONS,
        timeout_s: float = TIMEOUT_S,
        core: int | None = None,
    ) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        given = (address, list(shots), rate, check, connections, timeout_s)
        self._process = context.Process(target=_work, args=(theirs, given, core), daemon=True)
        self._process.start()
        theirs.close()
        self.total = Result()
        self._ended = False
        self._told(START_S)

    def cut(self) -> Result:
        """What has an outcome since the start, or since the last cut; it goes on."""
        self._pipe.send("cut")
        found = self._told(START_S)
        self.total.merge(found)
        return found

    def stop(self) -> Result:
        """Send nothing more, wait for the last answers; everything since the start."""
        if not self._ended:
            self._ended = True
            self._pipe.send("stop")
            self.total.merge(self._told(10 * TIMEOUT_S))
            self._process.join(TIMEOUT_S)
        return self.total

    def __enter__(self) -> Steady:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self.stop()
        finally:
            if self._process.is_alive():
                self._process.kill()
                self._process.join()

    def _told(self, patience_s: float) -> Result:
        if not self._pipe.poll(patience_s):
            raise TimeoutError(f"the load generator has not answered within {patience_s:g} s")
        found: Result = self._pipe.recv()
        return found


def _work(
    pipe: Connection,
    given: tuple[Address, list[Shot], float, Check, int, float],
    core: int | None,
) -> None:
    if core is not None:
        os.sched_setaffinity(0, {core})
    generator = Generator(*given)
    pipe.send(Result())
    try:
        while True:
            if generator.turn(time.monotonic() + LOOK_S, [pipe.fileno()]):
                word = pipe.recv()
                if word == "stop":
                    generator.settle(time.monotonic())
                pipe.send(generator.cut())
                if word == "stop":
                    return
    except EOFError:
        return  # whoever started us is gone
    finally:
        generator.close()
