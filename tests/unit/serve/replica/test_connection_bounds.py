"""What a replica does not take from a client, and clients that are slow, silent or gone."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
from contextlib import ExitStack
from typing import Any

import pytest

from holdfast.serve.records import Limits
from holdfast.serve.replica.connection import (
    REQUEST_HEAD_BYTES_MAX,
    REQUEST_HEADERS_MAX,
    REQUEST_TARGET_BYTES_MAX,
    Patience,
)
from holdfast.serve.replica.http import App
from holdfast.serve.replica.listening import Listener
from holdfast.serve.replica.requests import HTTP_IGNORED_BODY_BYTES_MAX
from holdfast.wire.errors import Occupied
from tests.unit.serve.replica.http_stage import (
    INSTANT,
    LONG,
    SHORT,
    WIDTH,
    HttpStage,
    chunked,
    predict,
    request,
)
from tests.waiting import eventually

BODY_MAX = 100_000
IMPATIENT = 0.3


def stage_with(**patience: float) -> HttpStage:
    """One that is impatient in one way, and looks often."""
    return HttpStage(
        limits=Limits(body_bytes_max=BODY_MAX), patience=Patience(look_s=0.02, **patience)
    )


# --- what is refused ------------------------------------------------------------------------------

MANY: dict[str, Any] = {f"x{at}": "1" for at in range(REQUEST_HEADERS_MAX + 1)}
REFUSED = {
    "no HTTP": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    "a bare line feed": (b"GET /v2 HTTP/1.1\nhost: test\n\n", 400),
    "two lengths": (
        request("POST", "/predict/m", b"[]", content_length="2\r\ncontent-length: 3"),
        400,
    ),
    "a length and chunks": (
        request(
            "POST", "/predict/m", chunked(b"[]"), transfer_encoding="chunked", content_length="2"
        ),
        400,
    ),
    "an encoding that nobody knows": (
        request("POST", "/predict/m", b"", transfer_encoding="odd"),
        400,
    ),
    "a length that is none": (request("POST", "/predict/m", b"", content_length="-1"), 400),
    "a chunk that is none": (
        request("POST", "/predict/m", b"zz\r\n", transfer_encoding="chunked"),
        400,
    ),
    "a header with a space before its colon": (b"GET /v2 HTTP/1.1\r\nhost : test\r\n\r\n", 400),
    "a proxy": (b"CONNECT somewhere:80 HTTP/1.1\r\nhost: somewhere:80\r\n\r\n", 405),
    "a long head": (request(x="y" * 2 * REQUEST_HEAD_BYTES_MAX), 431),
    "an endless head": (request(x="y" * 2 * REQUEST_HEAD_BYTES_MAX)[:-4], 431),
    "an endless name": (b"GET /v2 HTTP/1.1\r\n" + b"y" * 2 * REQUEST_HEAD_BYTES_MAX, 431),
    "many headers": (request(**MANY), 431),
    "a long path": (request(path="/" + "x" * REQUEST_TARGET_BYTES_MAX), 414),
    "an announced body": (
        request("POST", "/predict/m", b"", content_length=f"{BODY_MAX + 1}"),
        413,
    ),
    "a body of an exabyte": (request("POST", "/predict/m", b"", content_length="9" * 18), 413),
    "a body in chunks": (
        request(
            "POST", "/predict/m", chunked(*[b" " * 1_000] * 200)[:-5], transfer_encoding="chunked"
        ),
        413,
    ),
    "endless trailers": (
        request("POST", "/predict/m", b"0\r\n", transfer_encoding="chunked")
        + b"x: yyyyyyyyyyyyyy\r\n" * BODY_MAX,
        413,
    ),
    "a large body for nobody": (
        request("POST", "/nowhere", b"", content_length=f"{HTTP_IGNORED_BODY_BYTES_MAX + 1}"),
        404,
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_refused_is_answered_once_and_the_connection_ends(kind: str) -> None:
    sent, status = REFUSED[kind]
    with stage_with() as stage, stage.client() as client:
        assert client.ask(predict(1.0)).status == 200
        # In its turn, too: what was asked before is answered before.
        stage.gate.clear()
        with contextlib.suppress(ConnectionError):
            client.send(predict(1.0, LONG) + sent)
        stage.gate.set()
        assert client.read().status == 200
        said = client.read()
        assert (said.status, said.headers["connection"]) == (status, "close"), said
        assert said.json["error"]
        assert client.ends()
        client.close()
        stage.answers()


def test_who_sends_all_of_a_large_body_before_it_reads_still_reads_why_not() -> None:
    with stage_with() as stage:
        for sent in (
            request("POST", "/predict/m", b" " * 3_000_000),
            request("POST", "/predict/m", chunked(b" " * 3_000_000), transfer_encoding="chunked"),
        ):
            with stage.client() as client:
                said = client.ask(sent)
                assert (said.status, said.headers["connection"]) == (413, "close")
                client.socket.shutdown(socket.SHUT_WR)
                assert client.ends()
        stage.answers()


def test_a_small_body_that_is_too_large_for_its_service_costs_no_connection() -> None:
    with HttpStage(limits=Limits(body_bytes_max=50)) as stage, stage.client() as client:
        assert client.ask(request("POST", "/predict/m", b" " * 51)).status == 413
        assert client.ask(predict(3.0)).status == 200


def test_large_bodies_have_a_bound_together() -> None:
    limits = Limits(body_bytes_max=BODY_MAX, bodies_bytes_max=150_000)
    with (
        HttpStage(limits=limits, patience=Patience(look_s=0.02)) as stage,
        stage.client() as first,
        stage.client() as second,
    ):
        large = request("POST", "/predict/m", b" " * 90_000)
        first.send(large[:-1])
        eventually(lambda: stage.inside(lambda: stage.app.bodies) == 90_000, "the first has room")
        said = second.ask(large)
        assert (said.status, said.headers["retry-after"]) == (503, "1")
        assert first.ask(b" ").status == 400
        first.close()
        second.close()
        stage.answers()


# --- who is slow ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("patience", "sent", "status"),
    [
        ({"head_s": IMPATIENT}, predict(1.0)[:20], 408),
        ({"body_s": IMPATIENT}, predict(1.0)[:-1], 504),
        (
            {"body_s": IMPATIENT},
            request("POST", "/predict/m", b"", transfer_encoding="chunked"),
            504,
        ),
        ({"idle_s": IMPATIENT}, b"", None),
    ],
)
def test_who_is_too_slow_is_told_so_and_hung_up_on(
    patience: dict[str, float], sent: bytes, status: int | None
) -> None:
    with stage_with(**patience) as stage, stage.client() as client:
        if status is not None:
            assert client.ask(predict(1.0)).status == 200
            assert client.ask(sent).status == status
        assert client.ends()
        client.close()
        eventually(stage.is_quiet, "nothing is left of it")


def test_who_goes_on_sending_after_a_refusal_is_not_listened_to_for_ever() -> None:
    with stage_with(linger_s=1.0) as stage, stage.client() as client:
        assert (
            client.ask(request("POST", "/predict/m", b"", content_length="1000000")).status == 413
        )

        def is_over() -> bool:
            try:
                client.send(b" " * 1_000)
            except ConnectionError:
                return True
            return False

        eventually(is_over, "the server has hung up")
        stage.answers()


def test_who_does_not_read_its_answers_is_hung_up_on_and_holds_up_nobody() -> None:
    count = 100  # more than all buffers on the way can take
    with HttpStage(patience=Patience(look_s=0.02, unread_s=IMPATIENT)) as stage:
        with stage.client() as client, ExitStack() as stack:
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
            large = json.dumps([[1.0] * WIDTH] * 20_000).encode()
            asking = request("POST", "/predict/m", large) * count

            def ask() -> None:
                with contextlib.suppress(OSError):
                    client.send(asking)

            thread = threading.Thread(target=ask)
            thread.start()
            stack.callback(thread.join)
            with stage.client() as other:
                for _ in range(20):
                    assert other.ask(predict(1.0)).status == 200
            eventually(stage.is_quiet, "it was hung up on")
            computed = stage.engine.stats().versions[INSTANT].requests - 20
            assert computed < count, "nothing was computed for who does not read"
        stage.answers()


# --- who is gone ----------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [INSTANT, SHORT, LONG])
def test_a_client_that_goes_at_any_point_is_forgotten(version: int) -> None:
    whole = predict(1.0, version)
    with stage_with() as stage:
        stage.gate.clear()
        for at in range(0, len(whole) + 1, 7):
            stage.client().send(whole[:at]).close()
        stage.client().send(whole).close()
        with stage.client() as client:  # with a reset
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            client.send(whole * 3)
        stage.gate.set()
        stage.answers()


def test_what_takes_long_is_not_computed_for_a_client_that_has_gone() -> None:
    with stage_with() as stage, stage.client() as first:
        stage.gate.clear()
        first.send(predict(1.0, LONG))
        eventually(lambda: stage.inside(lambda: stage.engine.stats().running), "it is computed")
        with ExitStack() as stack:
            for _ in range(5):
                stack.enter_context(stage.client()).send(predict(2.0, LONG))
            eventually(
                lambda: stage.inside(lambda: stage.engine.stats().waiting) == 5, "the others wait"
            )
        eventually(lambda: stage.inside(lambda: stage.app.active) == 1, "they are forgotten")
        stage.gate.set()
        assert first.read().status == 200
        first.close()
        stage.answers()
        assert stage.computed == 1


# --- how many -------------------------------------------------------------------------------------


def test_more_requests_than_a_replica_takes_at_once_wait_and_are_answered() -> None:
    never = Patience(look_s=1e6)
    with HttpStage(requests_max=2, patience=never) as stage, ExitStack() as stack:
        stage.gate.clear()
        clients = [stack.enter_context(stage.client()) for _ in range(8)]
        for at, client in enumerate(clients):
            client.send(predict(at, LONG))
        eventually(lambda: stage.inside(lambda: stage.app.active) == 8, "all have come")
        assert stage.inside(lambda: stage.listener.load) == (2, 8)
        clients.pop(5).close()  # one that waits goes
        stage.gate.set()
        assert [client.read().json["y"][0] for client in clients] == [0, 2, 4, 6, 8, 12, 14]
        stack.close()
        stage.answers()


def test_more_connections_than_a_replica_takes_are_closed() -> None:
    with HttpStage(connections_max=2) as stage:
        with stage.client() as first, stage.client() as second:
            assert first.ask(predict(1.0)).status == second.ask(predict(1.0)).status == 200
            with stage.client() as third:
                assert third.ends()
            assert first.ask(predict(1.0)).status == 200
        eventually(stage.is_quiet, "they are gone")
        stage.answers()


# --- the server's own end -------------------------------------------------------------------------


def test_a_server_that_ends_answers_what_it_has_and_closes_the_rest() -> None:
    with stage_with() as stage, ExitStack() as stack:
        idle, asking, sending = (stack.enter_context(stage.client()) for _ in range(3))
        assert idle.ask(predict(1.0)).status == 200
        stage.gate.clear()
        asking.send(predict(1.0, LONG) + predict(2.0, SHORT))
        sending.send(predict(3.0)[:-1])
        eventually(lambda: stage.inside(lambda: stage.app.active) == 3, "they have come")
        ended = stage.stop()
        assert idle.ends()
        with pytest.raises((ConnectionError, EOFError)):
            stage.client().ask(predict(1.0))
        stage.gate.set()
        sending.send(predict(3.0)[-1:])
        answers: list[Any] = [asking.read(), asking.read(), sending.read()]
        assert [said.json["y"][0] for said in answers] == [2, 4, 6]
        assert [said.headers.get("connection") for said in answers] == [None, "close", "close"]
        assert asking.ends() and sending.ends()
        ended.result(60)
        eventually(stage.is_quiet, "nothing is left")


def test_a_server_that_ends_waits_for_nobody_for_ever() -> None:
    with stage_with() as stage, stage.client() as client:
        stage.gate.clear()
        client.send(predict(1.0, LONG))
        eventually(lambda: stage.inside(lambda: stage.app.active), "it has come")
        stage.stop(0.05).result(60)
        assert client.ends()
        eventually(stage.is_quiet, "nothing is left")


def test_a_port_that_another_process_has_is_an_error_with_its_fix() -> None:
    async def listen(app: App, port: int) -> None:
        await Listener(app, "127.0.0.1", port).start()

    with HttpStage() as stage:
        with pytest.raises(Occupied, match=f"cannot listen on 127.0.0.1:{stage.port}"):
            asyncio.run(listen(stage.app, stage.port))
        stage.answers()


def test_who_is_refused_after_its_last_byte_is_not_waited_for() -> None:
    patience = Patience(look_s=0.02, linger_s=1e6)
    with HttpStage(patience=patience) as stage, stage.client() as client:
        client.send(predict(1.0, SHORT) + b"this is no HTTP\r\n\r\n")
        client.socket.shutdown(socket.SHUT_WR)
        assert [client.read().status, client.read().status] == [200, 400]
        assert client.ends()
        eventually(stage.is_quiet, "nothing is left of it, though the client has not closed")
