"""The client of the chaos run: it asks two gateways in turn, and the other one if one is silent."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.proofs.chaos import judging
from tests.proofs.chaos.histories import Call, Tail
from tests.servers import free_port
from tests.waiting import eventually

ROOT = Path(__file__).parents[3]


class Gateway(BaseHTTPRequestHandler):
    """Version 3 answers its number; another path has no service."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        there = self.path == "/predict/answer"
        body = json.dumps({"y": [[3.0]]} if there else {"error": "no such service"}).encode()
        self.send_response(200 if there else 503)
        self.send_header("content-length", str(len(body)))
        self.send_header("x-holdfast-version", "3")
        self.send_header("x-holdfast-replica", "1")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


@contextmanager
def gateway() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Gateway) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def asked(folder: Path, ports: tuple[int, int], path: str = "/predict/answer") -> list[Call]:
    """At least forty tries of a client."""
    record = folder / "calls.jsonl"
    gateways = [f"--gateway=g{number}=127.0.0.1:{port}" for number, port in enumerate(ports, 1)]
    words = [*gateways, "--path", path, "--rate", "50", "--record", str(record)]
    command = [sys.executable, "-m", "tests.proofs.chaos.clients.caller", *words]
    tail, calls = Tail(record), list[Call]()

    def enough() -> bool:
        calls.extend(Call(**line) for line in tail.new())
        return len(calls) >= 40

    with subprocess.Popen(command, cwd=ROOT) as client:
        try:
            eventually(enough, "it asks")
        finally:
            client.send_signal(signal.SIGTERM)
            client.wait()
    enough()
    return calls


def test_both_gateways_are_asked_and_each_request_once(tmp_path: Path) -> None:
    with gateway() as one, gateway() as other:
        calls = asked(tmp_path, (one, other))
    assert {(call.wrong, call.version, call.replica) for call in calls} == {("", 3, "1")}
    assert {(call.gateway, call.number % 2) for call in calls} == {("g1", 0), ("g2", 1)}
    assert len({call.number for call in calls}) == len(calls)


def test_a_request_that_is_refused_goes_to_the_other_gateway(tmp_path: Path) -> None:
    with gateway() as one:
        calls = asked(tmp_path, (one, free_port()))
    refused = [call for call in calls if call.wrong]
    assert {call.gateway for call in refused} == {"g2"}
    assert all(call.wrong.startswith("connection: ConnectionRefused") for call in refused)
    answered = {call.number for call in calls if not call.wrong}
    assert answered == set(range(len(answered))), "every request has its answer"
    assert judging.unanswered(calls) == []


def test_an_error_is_an_answer_and_is_not_tried_again(tmp_path: Path) -> None:
    with gateway() as one, gateway() as other:
        calls = asked(tmp_path, (one, other), "/predict/nothing")
    assert all(call.wrong.startswith("status 503") for call in calls)
    assert len({call.number for call in calls}) == len(calls)
    assert len(judging.unanswered(calls)) == len(calls)


def test_a_gateway_that_hangs_up_is_seen(tmp_path: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener, gateway() as other:

        def hang_up() -> None:
            while True:
                try:
                    link, _ = listener.accept()
                except OSError:
                    return
                with link, suppress(OSError):
                    link.recv(10)

        thread = threading.Thread(target=hang_up)
        thread.start()
        calls = asked(tmp_path, (listener.getsockname()[1], other))
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
    assert {call.gateway for call in calls if call.wrong.startswith("connection")} == {"g1"}
    assert judging.unanswered(calls) == []
