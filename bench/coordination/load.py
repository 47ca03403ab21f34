"""The load generator: a process that takes jobs as lines of JSON and answers each with one.

It is apart from the driver so that neither takes the other's time, and it stays on one core, the
same for every server, so that a server always has the rest.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from kazoo.client import KazooClient

from bench.coordination import clients, fill, probes
from bench.coordination.clients import OPERATIONS, Taken
from bench.coordination.report import percentile
from bench.coordination.watchers import Crowd
from bench.coordination.wire import Link

Answer = dict[str, Any]

KAZOO_TIMEOUT_S: Final = 30.0


class Generator:
    """What the process holds between jobs: its clients and its crowds, by the server's port."""

    def __init__(self, name: str) -> None:
        self.folder = b"/bench/" + name.encode()
        self.kazoo: dict[int, KazooClient] = {}
        self.crowds: dict[int, Crowd] = {}
        self.jobs: dict[str, Callable[..., Answer]] = {
            "warm": self.warm,
            "load": self.load,
            "connect": self.connect,
            "watch": self.watch,
            "change": self.change,
            "leave": self.leave,
            "fill": self.fill,
            "missing": self.missing,
            "probe": self.probe,
        }

    def warm(self, port: int, seconds: float) -> Answer:
        with Link(port) as link:
            return {"wrong": clients.warm_up(link, self.folder, seconds)}

    def connect(self, port: int) -> Answer:
        """Have a kazoo client for this server."""
        if port not in self.kazoo:
            client = KazooClient(hosts=f"127.0.0.1:{port}", timeout=KAZOO_TIMEOUT_S)
            client.start(timeout=KAZOO_TIMEOUT_S)
            self.kazoo[port] = client
        return {}

    def load(self, port: int, by: str, operation: str, in_flight: int, seconds: float) -> Answer:
        """One measurement of one operation."""
        with Link(port) as link:
            asked = OPERATIONS[operation](link, self.folder)
            if by == "kazoo":
                self.connect(port)
                taken = clients.by_kazoo(self.kazoo[port], asked, in_flight, seconds)
            else:
                taken = clients.by_socket(link, asked, in_flight, seconds)
            asked.tidy(link, taken.done)
        return _summary(taken)

    def watch(self, port: int, size: int) -> Answer:
        """Let a crowd of this size watch; it connects with its first watch."""
        if port not in self.crowds:
            self.crowds[port] = Crowd(port, size)
        self.crowds[port].watch()
        return {}

    def change(self, port: int) -> Answer:
        seconds, wrong = self.crowds[port].change()
        return {"seconds": seconds, "wrong": wrong}

    def leave(self, port: int) -> Answer:
        """End what is connected to this server."""
        if crowd := self.crowds.pop(port, None):
            crowd.close()
        if client := self.kazoo.pop(port, None):
            client.stop()
            client.close()
        return {}

    def fill(self, port: int, count: int) -> Answer:
        with Link(port) as link:
            seconds, wrong = fill.fill(link, count)
        return {"seconds": seconds, "wrong": wrong}

    def missing(self, port: int, count: int, seed: int) -> Answer:
        with Link(port) as link:
            return {"wrong": fill.missing(link, count, seed)}

    def probe(self, port: int, kind: str, seconds: float) -> Answer:
        probe = {"read": probes.probe_reads, "write": probes.probe_writes}[kind]
        with Link(port) as link:
            return _summary(probe(link, seconds))


def _summary(taken: Taken) -> Answer:
    answer: Answer = {"done": taken.done, "wrong": taken.wrong, "seconds": taken.seconds}
    if taken.latencies_s:
        latencies = sorted(taken.latencies_s)
        for name, share in (("p50", 0.5), ("p99", 0.99), ("p999", 0.999), ("longest", 1.0)):
            answer[f"{name}_s"] = percentile(latencies, share)
    return answer


def main() -> None:
    """Jobs from stdin until it ends; the arguments are our name and our core (-1: any)."""
    logging.disable(logging.CRITICAL)
    name, core = sys.argv[1], int(sys.argv[2])
    if core >= 0:
        os.sched_setaffinity(0, {core})
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    generator = Generator(name)
    for line in sys.stdin:
        job = json.loads(line)
        begun = time.monotonic()
        try:
            answer = generator.jobs[job.pop("do")](**job)
        except Exception as error:
            # Whatever went wrong belongs into the driver's report, with the job that it hit.
            answer = {"failed": f"{type(error).__name__}: {error}"}
        answer["took_s"] = time.monotonic() - begun
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
