"""A steady load on a service, and what became of each request."""

from __future__ import annotations

import http.client
import threading
import time
from collections import Counter
from typing import Final, Self

THREADS: Final = 4
TIMEOUT_S: Final = 60.0


class Load:
    """So many requests a second, each sent when it is due, until `stop`. A request that is not
    answered with 200 has failed; nothing is tried again."""

    def __init__(self, host: str, port: int, path: str, body: bytes, rate: float) -> None:
        self._host, self._port, self._path, self._body = host, port, path, body
        self._pause_s = THREADS / rate
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._latencies_s: list[float] = []
        self._threads = [
            threading.Thread(target=self._work, args=(number,), daemon=True)
            for number in range(THREADS)
        ]
        self.sent = 0
        self.failures: Counter[str] = Counter()
        self.versions: Counter[str] = Counter()
        self.newest = ""  # the version that answered last

    @property
    def failed(self) -> int:
        return self.failures.total()

    def percentile_ms(self, percent: float) -> float:
        with self._lock:
            ordered = sorted(self._latencies_s)
        return 1000 * ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def _work(self, number: int) -> None:
        line = http.client.HTTPConnection(self._host, self._port, timeout=TIMEOUT_S)
        due_s = time.monotonic() + self._pause_s * number / THREADS
        headers = {"content-type": "application/json", "x-user": f"user-{number}"}
        while not self._stop.wait(max(0.0, due_s - time.monotonic())):
            try:
                line.request("POST", self._path, self._body, headers)
                answer = line.getresponse()
                answer.read()
                wrong = "" if answer.status == http.HTTPStatus.OK else f"status {answer.status}"
                version = answer.headers.get("x-holdfast-version", "")
            except (OSError, http.client.HTTPException) as error:
                wrong, version = f"{type(error).__name__}: {error}", ""
                line.close()
            self._note(time.monotonic() - due_s, wrong, version)
            due_s += self._pause_s
        line.close()

    def _note(self, took_s: float, wrong: str, version: str) -> None:
        with self._lock:
            self.sent += 1
            self._latencies_s.append(took_s)
            if wrong:
                self.failures[wrong] += 1
            else:
                self.versions[version] += 1
                self.newest = version
