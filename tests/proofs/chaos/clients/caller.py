"""`python -m tests.proofs.chaos.clients.caller`: asks two gateways in turn, at a steady rate.

A request goes to one gateway. If it could not be sent there, or the connection broke or was silent
for too long, it goes to the other one, once. An answer is an answer: whatever it says, nothing is
tried again. Each try is a line: the request's number, which gateway, when it was sent, when it
ended, since when there was the connection, what is wrong with the answer ("": nothing), which
version and which replica gave it.
"""

from __future__ import annotations

import argparse
import http.client
import json
import queue
import select
import socket
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from holdfast.system import process
from tests.proofs.chaos.clients.records import Record
from tests.proofs.chaos.histories import UNANSWERED
from tests.proofs.serving.models import BODY

# More than wait at once while one gateway hangs: ten seconds at the usual rate.
THREADS: Final = 96
# Within this somebody takes the connection, or the other gateway is asked.
CONNECT_S: Final = 3.0
# More than the service gives a request: what takes longer was lost on the way.
PATIENCE_S: Final = 30.0
USERS: Final = 64

Address = tuple[str, int]


class Link(http.client.HTTPConnection):
    """A connection that is kept, and opened anew if the other side has closed it meanwhile."""

    opened_s = 0.0
    sock: socket.socket | None

    def ready(self) -> None:
        if self.sock is not None and select.select([self.sock], [], [], 0.0)[0]:
            self.close()  # nothing was asked: what can be read is its end
        if self.sock is None:
            self.timeout = CONNECT_S
            self.connect()
            self.opened_s = time.time()
            assert self.sock is not None
            self.sock.settimeout(PATIENCE_S)


class Caller:
    """Threads with a connection to each gateway, that take requests from one line."""

    def __init__(self, gateways: Mapping[str, Address], path: str, record: Record) -> None:
        self._gateways, self._path = gateways, path
        self._record = record
        self._due: queue.Queue[tuple[int, float] | None] = queue.Queue()
        self._threads = [threading.Thread(target=self._work) for _ in range(THREADS)]
        for thread in self._threads:
            thread.start()

    def run(self, rate: float, stop: threading.Event) -> None:
        number, began_s = 0, time.time()
        while not stop.wait(max(0.0, began_s + number / rate - time.time())):
            self._due.put((number, time.time()))
            number += 1
        for _ in self._threads:
            self._due.put(None)
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        links = {name: Link(host, port) for name, (host, port) in self._gateways.items()}
        while (due := self._due.get()) is not None:
            self._answered(links, *due)
        for link in links.values():
            link.close()

    def _answered(self, links: Mapping[str, Link], number: int, due_s: float) -> None:
        names = list(links)
        for turn in range(len(names)):
            name = names[(number + turn) % len(names)]
            # One that waited for a free thread was not asked before that.
            sent_s = time.time()
            found = self._ask(links[name], number)
            found["opened_s"] = links[name].opened_s
            if found["wrong"]:
                links[name].close()
            late_s = round(sent_s - due_s, 3)
            told = {"gateway": name, "number": number, "sent_s": sent_s, "ended_s": time.time()}
            self._record.write(late_s=late_s, **told, **found)
            if not found["wrong"].startswith(UNANSWERED):
                return

    def _ask(self, link: Link, number: int) -> dict[str, Any]:
        headers = {"content-type": "application/json", "x-user": f"user-{number % USERS}"}
        found: dict[str, Any] = {"wrong": "", "version": 0, "replica": ""}
        try:
            link.ready()
            link.request("POST", self._path, BODY, headers)
            answer = link.getresponse()
            body = answer.read()
        except (OSError, http.client.HTTPException) as error:
            return {**found, "wrong": f"{UNANSWERED}: {type(error).__name__} {error}"}
        if answer.status != 200:
            return {**found, "wrong": f"status {answer.status}: {body[:160]!r}"}
        version = int(answer.getheader("x-holdfast-version", "0"))
        found |= {"version": version, "replica": answer.getheader("x-holdfast-replica", "")}
        try:
            said = json.loads(body)["y"]
        except (ValueError, KeyError):
            return {**found, "wrong": f"bytes: {body[:160]!r}"}
        if said != [[float(version)]]:
            return {**found, "wrong": f"bytes: version {version} answered {said}"}
        return found


def _gateway(text: str) -> tuple[str, Address]:
    name, _, where = text.partition("=")
    host, _, port = where.rpartition(":")
    return name, (host, int(port))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--gateway", type=_gateway, action="append", required=True, metavar="NAME=HOST:PORT")
    add("--path", required=True)
    add("--rate", type=float, default=20.0)
    add("--record", type=Path, required=True)
    given = parser.parse_args()
    stop = threading.Event()
    process.on_termination(stop.set)
    caller = Caller(dict(given.gateway), given.path, Record(given.record))
    caller.run(given.rate, stop)


if __name__ == "__main__":
    main()
