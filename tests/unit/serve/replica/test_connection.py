"""What a client's socket sees of a replica: each way to ask, and answers in their order."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

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

PACES = (INSTANT, SHORT, LONG)
ROW = json.dumps([3.0] * WIDTH).encode()
TWICE = {"y": [6.0] * WIDTH}


@pytest.fixture
def stage() -> Iterator[HttpStage]:
    with HttpStage() as made:
        yield made


@pytest.mark.parametrize("version", PACES)
def test_a_connection_stays_for_one_request_after_the_other(stage: HttpStage, version: int) -> None:
    with stage.client() as client:
        for value in range(5):
            said = client.ask(predict(value, version))
            assert (said.status, said.json) == (200, {"y": [2.0 * value] * WIDTH})
            assert said.headers["x-holdfast-version"] == str(version)
            assert said.headers["x-holdfast-replica"] == "5"
            assert said.headers["x-holdfast-region"] == "eu"
            assert "connection" not in said.headers and "date" in said.headers
    eventually(stage.is_quiet, "nothing is left of what was asked")


def test_requests_that_follow_each_other_unanswered_are_answered_in_their_order(
    stage: HttpStage,
) -> None:
    stage.gate.clear()
    with stage.client() as client:
        versions = [LONG, INSTANT, SHORT, LONG, SHORT, INSTANT, INSTANT]
        client.send(b"".join(predict(at, version) for at, version in enumerate(versions)))
        eventually(lambda: stage.inside(lambda: stage.app.active) == len(versions), "all have come")
        stage.gate.set()
        for at, version in enumerate(versions):
            said = client.read()
            assert said.json == {"y": [2.0 * at] * WIDTH}
            assert said.headers["x-holdfast-version"] == str(version)
    stage.answers()


def test_more_requests_than_are_parsed_at_once_are_all_answered(stage: HttpStage) -> None:
    stage.gate.clear()
    count = 2_000
    with stage.client() as client:
        data = b"".join(predict(at, INSTANT if at else LONG) for at in range(count))
        sending = threading.Thread(target=client.send, args=(data,))
        sending.start()
        eventually(lambda: stage.inside(lambda: stage.app.active), "the first has come")
        stage.gate.set()
        answers = [client.read() for _ in range(count)]
        sending.join()
    assert [said.json["y"][0] for said in answers] == [2.0 * at for at in range(count)]
    stage.answers()


@pytest.mark.parametrize(
    "sent",
    [
        request("POST", "/predict/m", ROW),
        request("POST", "/predict/m", chunked(ROW), transfer_encoding="chunked"),
        request(
            "POST",
            "/predict/m",
            chunked(
                *(bytes([byte]) for byte in ROW), after=b"x-late: 1\r\nX-Holdfast-Version: 9\r\n"
            ),
            transfer_encoding="Chunked",
        ),
        request("POST", "/predict/m?query=1#part", ROW),
        request("POST", "http://somewhere:80/predict/m", ROW),
        request("POST", "/predict/%6d", ROW),
        predict(3.0, HOST="again", Connection="Keep-Alive"),
        b"\r\n" + request("POST", "/predict/m", ROW),
    ],
    ids=["length", "chunk", "chunks", "query", "absolute", "quoted", "letters", "blank line"],
)
def test_each_way_to_write_a_request_is_understood_and_the_connection_stays(
    stage: HttpStage, sent: bytes
) -> None:
    with stage.client() as client:
        assert client.ask(sent).json == TWICE
        for byte in sent:  # and as slowly as can be
            client.send(bytes([byte]))
        assert client.read().json == TWICE
        assert client.ask(predict(3.0)).json == TWICE
    stage.answers()


def test_a_body_is_announced_before_it_is_sent_and_the_client_hears_when_it_is_wanted(
    stage: HttpStage,
) -> None:
    whole = request("POST", "/predict/m", ROW, expect="100-continue")
    with stage.client() as client:
        for _ in range(2):
            assert client.ask(whole[: -len(ROW)]).status == 100
            assert client.ask(ROW).json == TWICE
        # Not wanted: the last word comes at once.
        elsewhere = whole.replace(b"/predict/m", b"/predict/other")
        said = client.ask(elsewhere[: -len(ROW)])
        assert (said.status, said.headers["connection"]) == (404, "close")
        assert client.ends()
    stage.answers()


def test_old_clients_are_answered_and_closed_unless_they_ask_to_stay(stage: HttpStage) -> None:
    old = predict(3.0).replace(b"HTTP/1.1", b"HTTP/1.0")
    with stage.client() as client:
        said = client.ask(old)
        assert (said.json, said.headers["connection"]) == (TWICE, "close")
        assert client.ends()
    stays = old.replace(b"host: test", b"connection: keep-alive")
    with stage.client() as client:
        for _ in range(3):
            said = client.ask(stays)
            assert (said.json, said.headers["connection"]) == (TWICE, "keep-alive")
    stage.answers()


@pytest.mark.parametrize("version", PACES)
def test_who_asks_for_the_end_of_the_connection_gets_it_after_the_answer(
    stage: HttpStage, version: int
) -> None:
    with stage.client() as client:
        said = client.ask(predict(3.0, version, connection="close"))
        assert (said.json, said.headers["connection"]) == (TWICE, "close")
        assert client.ends()
    stage.answers()


def test_what_has_no_body_in_the_answer_has_none(stage: HttpStage) -> None:
    with stage.client() as client:
        said = client.send(request("HEAD", "/v2")).read(bodiless=True)
        assert (said.status, said.headers["allow"]) == (405, "GET")
        assert int(said.headers["content-length"]) > 0
        assert client.ask(predict(3.0)).json == TWICE


def test_a_body_that_nobody_asked_for_is_no_reason_to_hang_up(stage: HttpStage) -> None:
    with stage.client() as client:
        assert client.ask(request("GET", "/v2", ROW)).status == 200
        assert client.ask(request("POST", "/nowhere", ROW)).status == 404
        assert (
            client.ask(request("DELETE", "/v2", chunked(ROW), transfer_encoding="chunked")).status
            == 405
        )
        assert client.ask(request("POST", "/predict/m")).status == 400
        assert client.ask(predict(3.0)).json == TWICE
    stage.answers()


def test_a_request_for_another_protocol_is_answered_in_this_one(stage: HttpStage) -> None:
    upgrade: dict[str, Any] = {"connection": "Upgrade, HTTP2-Settings", "upgrade": "h2c"}
    upgrade["http2_settings"] = "AAMAAABk"
    posted = predict(3.0, **upgrade)
    in_chunks = request("POST", "/predict/m", chunked(ROW), transfer_encoding="chunked", **upgrade)
    call = request("GET", "/v2/health/live", **upgrade)
    with stage.client() as client:
        client.send(posted + call + in_chunks + posted)
        assert client.read().json == TWICE
        assert client.read().json == {"live": True}
        assert client.read().json == TWICE
        assert client.read().json == TWICE
        for byte in posted:
            client.send(bytes([byte]))
        assert client.read().json == TWICE
    stage.answers()


@pytest.mark.parametrize("version", [INSTANT, SHORT])
def test_a_client_that_sends_nothing_more_is_answered_what_it_has_asked(
    stage: HttpStage, version: int
) -> None:
    with stage.client() as client:
        client.send(predict(3.0, version) + predict(4.0, version))
        client.socket.shutdown(socket.SHUT_WR)
        assert client.read().json == TWICE
        assert client.read().json == {"y": [8.0] * WIDTH}
        assert client.ends()
    stage.answers()


def test_large_tensors_come_and_go_in_the_binary_form(stage: HttpStage) -> None:
    rows = 100_000
    raw = b"\x00\x00\x80\x3f" * (rows * WIDTH)
    head = json.dumps(
        {
            "inputs": [
                {
                    "name": "x",
                    "shape": [rows, WIDTH],
                    "datatype": "FP32",
                    "parameters": {"binary_data_size": len(raw)},
                }
            ],
            "parameters": {"binary_data_output": True},
        }
    ).encode()
    length = {"inference_header_content_length": str(len(head))}
    with stage.client() as client:
        for version in PACES:
            sent = request(
                "POST", "/v2/models/m/infer", head + raw, x_holdfast_version=str(version), **length
            )
            said = client.ask(sent)
            assert said.status == 200
            json_bytes = int(said.headers["inference-header-content-length"])
            assert said.body[json_bytes:] == b"\x00\x00\x00\x40" * (rows * WIDTH)
    stage.answers()
