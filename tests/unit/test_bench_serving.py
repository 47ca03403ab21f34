"""The bench of serving: its load generator hides no waiting, and counts whatever is wrong."""

from __future__ import annotations

import itertools
import math
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import numpy as np
import pytest

from bench.serving import work, wrk
from bench.serving.checks import Right
from bench.serving.contestants import Broken, MLServer, RayServe
from bench.serving.histogram import Histogram
from bench.serving.ours import FixedGateway, Gateway
from bench.serving.replies import Garbled, Reply, Shot, take
from bench.serving.rounds import Turns, described
from bench.serving.steady import Result, Steady, run
from bench.serving.throughput import Row, verdicts
from tests.waiting import eventually

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nx-holdfast-version: 4\r\n\r\nok"
Answer = Callable[[int], bytes | None]


@contextmanager
def server(answer: Answer) -> Iterator[tuple[str, int]]:
    """Answers the n-th request with these bytes; None: it closes the connection."""
    listener = socket.create_server(("127.0.0.1", 0))
    numbers = itertools.count()

    def talk(line: socket.socket) -> None:
        with closing(line), closing(line.makefile("rb")) as stream:
            while stream.readline():
                length = 0
                while (header := stream.readline().strip()) != b"":
                    name, _, value = header.partition(b":")
                    length = int(value) if name == b"content-length" else length
                stream.read(length)
                said = answer(next(numbers))
                if said is None:
                    return
                line.sendall(said)

    def listen() -> None:
        while True:
            try:
                line, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=talk, args=(line,), daemon=True).start()

    threading.Thread(target=listen, daemon=True).start()
    try:
        yield listener.getsockname()
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def test_every_request_that_was_due_is_sent_and_answered() -> None:
    with server(lambda _: OK) as address:
        found = run(address, "/x", b"body", rate=200, seconds=1)
    assert found.sent == 200
    assert (found.failed, found.unsent) == (0, 0)
    assert found.statuses == {200: found.sent}
    assert found.by_version == {"4": found.sent}
    assert found.latencies.count == found.sent


def test_a_server_that_stands_still_has_kept_everything_waiting_that_was_due_meanwhile() -> None:
    def answer(number: int) -> bytes:
        if number == 20:
            time.sleep(0.5)  # pause: it stands still
        return OK

    with server(answer) as address:
        found = run(address, "/x", b"", rate=200, seconds=1, connections=1)
    assert found.failed == 0
    # Half a second of 200/s is 100 requests; they waited from 0.5 s down to nothing.
    assert found.starved >= 90
    assert found.latencies.longest_s >= 0.5
    assert found.p_ms(99) > 400


def test_what_is_wrong_is_counted_with_its_reason() -> None:
    bad = b"HTTP/1.1 503 no\r\nContent-Length: 0\r\n\r\n"
    with server(lambda number: (OK, bad, None)[number % 3]) as address:
        found = run(address, "/x", b"", rate=90, seconds=1)
    assert found.sent == 90
    assert found.failed == found.sent - found.statuses[200]
    assert found.statuses[503] == 30
    assert found.reasons["connection: closed"] == 30


def test_a_server_that_is_not_there_fails_every_request_and_never_raises() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = free.getsockname()
    found = run(address, "/x", b"", rate=50, seconds=0.5)
    assert found.sent == 25
    assert found.failed == found.sent


def test_a_request_without_an_answer_has_failed_after_its_time() -> None:
    def answer(number: int) -> bytes:
        if number == 3:
            time.sleep(3)  # pause: no answer in time
        return OK

    with server(answer) as address:
        found = run(address, "/x", b"", rate=20, seconds=0.5, timeout_s=1.0)
    # On a busy machine others may have failed by the same.
    assert found.failed >= 1
    assert set(found.reasons) == {"connection: no answer within 1 s"}


def test_a_generator_of_its_own_process_is_cut_into_parts_that_sum_up() -> None:
    with (
        server(lambda _: OK) as address,
        Steady(address, [Shot("/a"), Shot("/b", b"x" * 100_000)], rate=100) as load,
    ):
        part = eventually(lambda: found if (found := load.cut()).sent else None, "some are sent")
        eventually(lambda: load.cut().sent, "and some more")
        total = load.stop()
    assert 0 < part.sent < total.sent
    assert (total.failed, total.unsent) == (0, 0)
    span = total.versions["4"]
    assert span.first_sent_s < span.first_answered_s <= span.last_answered_s


def test_replies_are_cut_out_of_a_stream_wherever_it_is_broken() -> None:
    chunked = (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n"
    )
    whole = OK + chunked + b"HTTP/1.1 204 none\r\nConnection: close\r\n\r\n"
    seed = 5
    print(f"seed {seed}")
    chance = random.Random(seed)
    for _ in range(50):
        stream, bodies, at = bytearray(), [], 0
        while at < len(whole):
            size = chance.randint(1, 40)
            stream += whole[at : at + size]
            at += size
            while (reply := take(stream, 0)) is not None:
                bodies.append((reply.status, reply.body, reply.closes))
        assert bodies == [(200, b"ok", False), (200, b"abcde", False), (204, b"", True)]
        assert not stream
    with pytest.raises(Garbled):
        take(bytearray(b"SSH-2.0\r\n\r\n"), 0)


def test_a_histogram_is_right_to_half_a_percent() -> None:
    chance = np.random.default_rng(3)
    values = chance.lognormal(-6, 1, 20_000)
    one, two = Histogram(), Histogram()
    for place, value in enumerate(values):
        (one if place % 2 else two).add(float(value))
    one.merge(two)
    assert one.count == 20_000
    for share in (0.5, 0.99, 0.999):
        exact = float(np.quantile(values, share, method="inverted_cdf")) * 1000
        assert one.percentile_ms(share) == pytest.approx(exact, rel=0.006)
    assert math.isnan(Histogram().percentile_ms(0.5))


def test_an_answer_with_other_numbers_or_of_another_version_is_wrong() -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json"
    right = work.fixed_reply("small")
    check = Right("small", "1")
    assert check(Reply(200, head, right, "1")) == ""
    assert "version" in check(Reply(200, head, right, "2"))
    other = work.reply_of("small", work.model("small")(work.row("small")) + 0.1)
    assert "wrong numbers" in check(Reply(200, head, str(other).replace("'", '"').encode(), "1"))
    assert "not an answer" in check(Reply(200, head, b"{}", "1"))
    assert "status 500" in check(Reply(500, head, right, "1"))


def window(*latencies_ms: float, stolen_s: float = 0.0) -> Result:
    found = Result(seconds=20.0, stolen_s=stolen_s)
    for latency_ms in latencies_ms:
        found.sent += 1
        found.latencies.add(latency_ms / 1000)
    return found


def test_windows_with_loads_are_compared_with_the_quiet_ones_and_those_with_each_other() -> None:
    turns = Turns([window(*[2.0] * 100)])
    assert math.isnan(turns.noise)
    turns.busy.append(window(*[3.0] * 100))
    turns.quiet.append(window(*[4.0] * 100))
    turns.busy.append(window(*[3.0] * 97, *[8.0] * 3))
    turns.quiet.append(window(*[2.0] * 100))
    # Of all together: 3 of 200 took 8 ms, and 100 of 300 took 4: the second window, not the others.
    assert (turns.ratio, turns.noise) == pytest.approx((2.0, 2.0), rel=0.02)
    found = turns.document()
    assert (found["quiet"]["requests"], found["busy"]["requests"]) == (300, 200)
    assert [row["p99_ms"] for row in found["windows"]["busy"]] == pytest.approx([3, 8], rel=0.02)


def test_a_window_whose_cores_were_stolen_is_shown_and_left_out_unless_there_is_no_other() -> None:
    turns = Turns([window(*[2.0] * 100)])
    turns.busy.append(window(*[90.0] * 100, stolen_s=2.0))
    turns.quiet.append(window(*[4.0] * 100))
    assert turns.counting == 0
    assert turns.ratio == pytest.approx(90 / 4, rel=0.02)
    turns.busy.append(window(*[6.0] * 100, stolen_s=0.2))
    turns.quiet.append(window(*[70.0] * 100, stolen_s=5.0))
    assert turns.counting == 1
    assert turns.ratio == pytest.approx(6 / 4, rel=0.02)
    assert turns.noise == pytest.approx(2.0, rel=0.02)
    found = turns.document()
    assert (found["quiet"]["requests"], found["busy"]["requests"]) == (200, 100)
    assert [row["stolen"] for row in found["windows"]["busy"]] == pytest.approx([0.1, 0.01])
    assert described(turns.busy[0]).endswith("10.0% of the cores stolen: left out")
    assert described(turns.busy[1]).endswith("1.0% of the cores stolen")


def test_what_wrk_says_is_read_with_its_units_and_its_errors() -> None:
    said = """
    Latency Distribution
     50%  850.00us
     99%    1.20s
  11002 requests in 5.00s, 2.1MB read
  Socket errors: connect 0, read 3, write 0, timeout 2
  Non-2xx or 3xx responses: 7
Requests/sec:   2200.40
"""
    assert wrk.parsed(said) == wrk.Found(11_002, 2200.4, 0.85, 1200.0, 12)
    with pytest.raises(Broken):
        wrk.parsed("unable to connect")


def test_a_goal_that_was_missed_is_called_missed() -> None:
    def row(name: str, rate: float, p99: float) -> Row:
        return Row(name, rate=rate, wrk_p99=p99, steady_p99=p99, half_p99=p99)

    rows = [row(Gateway.name, 1000, 5.0), row(FixedGateway.name, 1200, 4.0)]
    rows += [row(MLServer.name, 400, 6.0), row(RayServe.name, 30, 90.0)]
    reached = {one.what: one.reached for one in verdicts(rows)}
    assert reached == {
        "requests/s, ours to the best peer's": False,  # 2.5 times
        "p99 under wrk, ours to the best peer's": True,
        "p99 at a constant rate, ours to the best peer's": True,
        "requests/s, ours to Ray Serve's (default)": True,
        "requests/s, ours to fixed bytes behind the same Envoy": False,  # 0.83
    }
    assert verdicts([Row(Gateway.name, broken="it has ended")]) == []
