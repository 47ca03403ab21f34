"""Bytes become requests, however they are cut, and nothing that is damaged does harm."""

from __future__ import annotations

import random
import socket

from holdfast.serve.replica.connection import HttpReader
from holdfast.serve.replica.requests import HttpApp, HttpRequest
from tests.unit.serve.replica.http_stage import WIDTH, HttpStage, chunked, predict, request

SEED = 20_261
DAMAGED = 3_000
BODY_MAX = 1_000

ROW = b"[1.0, 2.0, 3.0, 4.0]"
GOOD = (
    predict(3.0),
    request("GET", "/v2/models/m"),
    request("GET", "/v2/health/ready", connection="close"),
    request("POST", "/predict/m", chunked(ROW[:7], ROW[7:]), transfer_encoding="chunked"),
    request("POST", "/predict/m", ROW, expect="100-continue"),
    request("POST", "/predict/m", ROW, connection="Upgrade", upgrade="h2c"),
    request("GET", "/v2", connection="Upgrade", upgrade="websocket"),
    request("GET", "/v2").replace(b"HTTP/1.1", b"HTTP/1.0"),
    request("OPTIONS", "*"),
)
# What a damaged request has in place of what was there.
ODD = (
    b"\r\n",
    b"\n",
    b"\r",
    b"\0",
    b" ",
    b":",
    b"\xff",
    b"0\r\n\r\n",
    b"content-length: 5\r\n",
    b"content-length: 99999999999999999999\r\n",
    b"transfer-encoding: chunked\r\n",
    b"connection: close\r\n",
    b"expect: 100-continue\r\n",
    b"upgrade: h2c\r\n",
    b"HTTP/1.1",
    b"POST /predict/m HTTP/1.1\r\n",
)


class Taken:
    """Takes what a reader has read (`Taker`, and the application behind it)."""

    def __init__(self) -> None:
        self.app: HttpApp = self
        self.calls: list[HttpRequest] = []

    def begin(self, call: HttpRequest) -> None:
        call.most = BODY_MAX

    def answer(self, call: HttpRequest) -> None: ...

    def ended(self, call: HttpRequest) -> None: ...

    def began(self) -> None: ...

    def take(self, call: HttpRequest) -> None:
        self.calls.append(call)

    def expected(self, call: HttpRequest) -> None: ...

    def reply(self, call: HttpRequest, head: bytes, body: bytes) -> None: ...


def read(*pieces: bytes) -> list[tuple[object, ...]]:
    """What a reader makes of these."""
    taken = Taken()
    reader = HttpReader(taken)
    for piece in pieces:
        reader.feed(piece)
    reader.close()
    return [
        (each.method, each.target, each.headers, each.body, each.keeps, each.cut, each.status)
        for each in taken.calls
    ]


def test_requests_are_the_same_wherever_they_are_cut() -> None:
    for whole in GOOD:
        data = whole + GOOD[0]
        found = read(data)
        assert 1 <= len(found) <= 2
        assert not any(cut or status for *_, cut, status in found)
        for at in range(len(data)):
            assert read(data[:at], data[at:]) == found, (whole, at)
        assert read(*(bytes([byte]) for byte in data)) == found


def test_damaged_bytes_are_requests_or_refused_wherever_they_are_cut() -> None:
    print(f"seed {SEED}")
    chance = random.Random(SEED)
    for _ in range(DAMAGED):
        data = damaged(chance)
        at = chance.randrange(len(data) + 1)
        found = read(data)
        assert read(data[:at], data[at:]) == found, data
        last = [status for *_, status in found if status]
        assert len(last) <= 1, "nothing is read after a refusal"


def test_a_replica_outlives_damaged_requests_and_answers_good_ones() -> None:
    print(f"seed {SEED}")
    chance = random.Random(SEED)
    with HttpStage() as stage:
        for number in range(DAMAGED):
            with stage.client() as client:
                client.send(damaged(chance))
                if chance.random() < 0.1:
                    continue  # and it is gone
                client.socket.shutdown(socket.SHUT_WR)
                try:
                    while True:
                        assert 100 <= client.read().status < 600
                except (EOFError, ConnectionError):
                    pass
            if number % 100 == 0:
                with stage.client() as client:
                    assert client.ask(predict(1.0)).json == {"y": [2.0] * WIDTH}
        stage.answers()


def damaged(chance: random.Random) -> bytes:
    """Some good requests, and then something happens to them."""
    data = bytearray(b"".join(chance.choices(GOOD, k=chance.randint(1, 3))))
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(data))
        match chance.randrange(6):
            case 0:
                data[at] = chance.randrange(256)
            case 1:
                del data[at : at + chance.randint(1, 20)]
            case 2:
                data[at:at] = chance.choice(ODD)
            case 3:
                data[at : at + 1] = chance.choice(ODD)
            case 4:
                data[at:at] = data[at : at + chance.randint(1, 60)]
            case _:
                del data[at:]
        if not data:
            data = bytearray(b"\r\n")
    return bytes(data)
