"""Watch fan-out: a thousand connections watch one node; how long until the last one is told."""

from __future__ import annotations

import selectors
import struct
import time
from typing import Final

from bench.coordination import wire
from bench.coordination.wire import Link, Wrong

NODE: Final = b"/bench/watched"
LAST_S: Final = 30.0
# The frame of the event "data changed": no request's number, no zxid, no error, connected.
_EVENT: Final = wire.text(struct.pack("!iqiii", -1, -1, 0, 3, 3) + wire.text(NODE))


class Crowd:
    """Connections that each watch the node, and one that writes to it."""

    def __init__(self, port: int, size: int) -> None:
        self.writer = Link(port).open()
        wire.make_path(self.writer, NODE)
        self.links = [Link(port) for _ in range(size)]
        for link in self.links:
            link.greet()
        for link in self.links:
            link.welcomed()
        self.selector = selectors.DefaultSelector()
        for link in self.links:
            self.selector.register(link.socket, selectors.EVENT_READ, link)
        self.changes = 0

    def watch(self) -> None:
        """Let every connection watch the node (again: a watch tells once)."""
        body = wire.get_body(NODE, watch=True)
        numbers = [link.send(wire.GET_DATA, body) for link in self.links]
        for link, number in zip(self.links, numbers, strict=True):
            error, _ = link.answer(number)
            if error:
                raise Wrong(f"a watch was answered with error {error}")

    def change(self) -> tuple[float, int]:
        """Write to the node: seconds until the last event, and how many of them were wrong."""
        self.changes += 1
        body = wire.set_body(NODE, b"%0100d" % self.changes)
        told: dict[Link, bytes] = {}
        started = now = time.perf_counter()
        number = self.writer.send(wire.SET_DATA, body)
        while len(told) < len(self.links):
            if now - started > LAST_S:
                missing = len(self.links) - len(told)
                raise Wrong(f"{missing} watchers were not told within {LAST_S} s")
            for key, _ in self.selector.select(timeout=1.0):
                # Only taken here, looked at afterwards: the clock is the server's.
                told[key.data] = told.get(key.data, b"") + key.data.receive()
            now = time.perf_counter()
        error, _ = self.writer.answer(number)
        return now - started, sum(got != _EVENT for got in told.values()) + bool(error)

    def close(self) -> None:
        self.selector.close()
        numbers = [link.send(wire.CLOSE, b"") for link in self.links]
        for link, number in zip(self.links, numbers, strict=True):
            link.answer(number)
            link.drop()
        self.writer.close()
