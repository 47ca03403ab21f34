"""`python -m tests.proofs.chaos.clients.caller`: asks the gateway at a steady rate.

Nothing is tried again. Each request is a line: when it was sent, when it ended, and what is wrong
with the answer ("": nothing), which version and which replica gave it.
"""

from __future__ import annotations

import argparse
import http.client
import json
import queue
import signal
import threading
import time
from pathlib import Path
from typing import Any, Final

from tests.proofs.chaos.clients.records import Record
from tests.proofs.serving.models import BODY

THREADS: Final = 48  # more than wait at once while two tries hang: ten seconds at the usual rate
# More than the service gives a request: what takes longer was lost on the way.
PATIENCE_S: Final = 30.0
USERS: Final = 64


class Caller:
    """Threads with a connection each, that take requests from one line."""

    def __init__(self, host: str, port: int, path: str, record: Record) -> None:
        self._host, self._port, self._path = host, port, path
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
        link = http.client.HTTPConnection(self._host, self._port, timeout=PATIENCE_S)
        while (due := self._due.get()) is not None:
            number, due_s = due
            # One that waited for a free thread was not asked before that.
            sent_s = time.time()
            found = self._ask(link, number)
            if found["wrong"]:
                link.close()
            late_s = round(sent_s - due_s, 3)
            self._record.write(sent_s=sent_s, ended_s=time.time(), late_s=late_s, **found)
        link.close()

    def _ask(self, link: http.client.HTTPConnection, number: int) -> dict[str, Any]:
        headers = {"content-type": "application/json", "x-user": f"user-{number % USERS}"}
        found: dict[str, Any] = {"wrong": "", "version": 0, "replica": ""}
        try:
            link.request("POST", self._path, BODY, headers)
            answer = link.getresponse()
            body = answer.read()
        except (OSError, http.client.HTTPException) as error:
            return {**found, "wrong": f"connection: {type(error).__name__} {error}"}
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--path", required=True)
    parser.add_argument("--rate", type=float, default=20.0)
    parser.add_argument("--record", type=Path, required=True)
    given = parser.parse_args()
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    caller = Caller(given.host, given.port, given.path, Record(given.record))
    caller.run(given.rate, stop)


if __name__ == "__main__":
    main()
