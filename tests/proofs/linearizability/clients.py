"""Concurrent clients over raw connections that write down what they asked and were told."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence

from holdfast.coordination.embedded import protocol as p
from tests.proofs import wire
from tests.proofs.linearizability.history import ANY_VERSION, NEVER, Kind, Operation

ROOT = "/registers"
ANSWER_S = 5.0
RETRY_S = 0.02
# A client that cannot come back for so long ends the run: the server is not coming up.
AWAY_S = 120.0


def make_registers(port: int, count: int) -> list[Operation]:
    """Create the registers; the operations that begin their histories."""
    history = []
    with wire.Link(port) as link:
        link.connect()
        link.call(1, p.CREATE, wire.create_body(ROOT))
        for number in range(count):
            path, value = f"{ROOT}/{number}", f"made {number}".encode()
            began = time.monotonic_ns()
            reply = link.call(number + 2, p.CREATE2, wire.create_body(path, value))
            assert reply is not None and reply.error == 0, f"{path} cannot be made: {reply}"
            reader = wire.Reader(reply.body)
            reader.string()
            stat = reader.stat()
            history.append(
                Operation(
                    client=-1,
                    key=path,
                    kind="write",
                    value=value,
                    expected=ANY_VERSION,
                    invoked=began,
                    returned=time.monotonic_ns(),
                    outcome="ok",
                    position=reply.zxid,
                    mzxid=stat.mzxid,
                    version=stat.version,
                )
            )
        link.call(count + 2, p.CLOSE_SESSION)
    return history


class Client(threading.Thread):
    """Reads, writes and compares-and-sets registers, one operation at a time, until told to stop.

    Now and then it breaks its own connection while it waits: the outcome is then not known. It
    comes back with its session, or with a new one. It never tells the server which zxid it has
    seen: a server that forgot must be caught by the check, not by its own guard.
    """

    def __init__(
        self, number: int, port: int, keys: Sequence[str], seed: int, stop: threading.Event
    ) -> None:
        super().__init__(name=f"client-{number}", daemon=True)
        self.number = number
        self.port = port
        self.keys = keys
        self.random = random.Random(f"{seed}/{number}")
        self.stop_event = stop
        self.history: list[Operation] = []
        self.versions: dict[str, int] = {}
        self.link: wire.Link | None = None
        self.session = (0, wire.NO_PASSWORD)
        self.xid = 0
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.stop_event.is_set():
                link = self.link or self._come_back()
                if link is not None:
                    self.link = link
                    self._one(link)
            self._leave()
        except BaseException as error:
            self.failure = error
            raise

    def _come_back(self) -> wire.Link | None:
        """A connection with the old session, or a new one where that is over."""
        deadline = time.monotonic() + AWAY_S
        while not self.stop_event.is_set():
            assert time.monotonic() < deadline, f"no server for {AWAY_S} s"
            try:
                link = wire.Link(self.port, ANSWER_S)
                session, password = self.session
                welcome = link.connect(session=session, password=password)
            except OSError:
                welcome = None
            if welcome is not None and welcome.session and welcome.password:
                self.session = (welcome.session, welcome.password)
                return link
            if welcome is not None:
                self.session = (0, wire.NO_PASSWORD)
            self.stop_event.wait(RETRY_S)
        return None

    def _leave(self) -> None:
        if self.link is not None:
            self.link.send(wire.request_frame(self.xid + 1, p.CLOSE_SESSION))
            self.link.drop()

    def _one(self, link: wire.Link) -> None:
        key = self.random.choice(self.keys)
        self.xid += 1
        dice = self.random.random()
        version = self.versions.get(key)
        if dice < 0.4 or (dice < 0.7 and version is None):
            op, body, value, expected = p.GET_DATA, wire.read_body(key), b"", ANY_VERSION
        else:
            expected = version if dice < 0.7 and version is not None else ANY_VERSION
            value = f"{self.number}.{self.xid}".encode()
            op, body = p.SET_DATA, wire.set_data_body(key, value, expected)
        began = time.monotonic_ns()
        link.request(self.xid, op, body)
        reply = None if self.random.random() < 0.003 else self._answer(link)
        ended = time.monotonic_ns()
        kind: Kind = "read" if op == p.GET_DATA else "write"
        asked = Operation(self.number, key, kind, value, expected, began, NEVER, "unknown")
        if reply is None:
            link.drop()
            self.link = None
            if kind == "write":
                self.history.append(asked)
            return
        assert reply.xid == self.xid, f"the reply of {reply.xid} came to {self.xid}"
        self.history.append(self._told(asked._replace(returned=ended), reply))

    def _answer(self, link: wire.Link) -> wire.Reply | None:
        try:
            return link.receive()
        except OSError:
            return None

    def _told(self, asked: Operation, reply: wire.Reply) -> Operation:
        told = asked._replace(position=reply.zxid)
        if reply.error == p.BAD_VERSION and asked.kind == "write":
            # Read again before the next try, or it would be refused for ever.
            self.versions.pop(asked.key, None)
            return told._replace(outcome="refused")
        assert reply.error == 0, f"{asked} was answered with {reply.error}"
        reader = wire.Reader(reply.body)
        value = asked.value if asked.kind == "write" else reader.buffer() or b""
        stat = reader.stat()
        self.versions[asked.key] = stat.version
        return told._replace(outcome="ok", value=value, mzxid=stat.mzxid, version=stat.version)
