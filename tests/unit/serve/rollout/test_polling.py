"""Asking replicas: those that answer, that are silent, and that are gone."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from holdfast.serve.controller.controller import Poller, Round
from holdfast.serve.records import Replica, ReplicaStats
from holdfast.system.clock import SystemClock
from holdfast.wire import documents
from tests.servers import free_port
from tests.unit.serve.rollout.facts import replica, shifting
from tests.waiting import eventually

VARIANTS = shifting(500).variants


def at(port: int, worker: int) -> Replica:
    return replace(replica(worker, 1), host="127.0.0.1", http_port=port)


@contextmanager
def answering(status: int, body: bytes) -> Iterator[int]:
    """A server that says this to everybody; its port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def one_round(poller: Poller, *replicas: Replica) -> Round:
    poller.ask("s", {each.worker: each for each in replicas}, VARIANTS, 0.0)
    (found,) = eventually(poller.collect, "the round is over")
    return found


def test_a_dead_replica_is_not_waited_for_and_a_silent_one_is_counted() -> None:
    body = json.dumps(documents.document(ReplicaStats(1, 3, 1, 0))).encode()
    poller = Poller(lambda: None, SystemClock())
    with (
        answering(200, body) as good,
        answering(500, b"{}") as broken,
        answering(200, b"not ours") as foreign,
        socket.create_server(("127.0.0.1", 0)) as silent,
    ):
        found = one_round(
            poller,
            at(good, 1),
            at(broken, 2),
            at(foreign, 3),
            at(silent.getsockname()[1], 4),
            at(free_port(), 5),
        )
    poller.close()
    assert found.answers == {1: ReplicaStats(1, 3, 1, 0)}
    assert found.asked == (1, 2, 3, 4)


def test_a_service_is_not_asked_again_before_its_time_or_while_it_is_asked() -> None:
    poller = Poller(lambda: None, SystemClock())
    gone = at(free_port(), 1)
    assert one_round(poller, gone).asked == ()
    poller.ask("s", {1: gone}, VARIANTS, 3_600.0)
    assert poller.collect() == []
    poller.forget("s")
    poller.ask("s", {1: gone}, VARIANTS, 3_600.0)
    eventually(poller.collect, "it was asked")
    poller.close()
    poller.ask("s", {1: gone}, VARIANTS, 0.0)
    assert poller.collect() == []
