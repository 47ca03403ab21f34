"""What must hold while and after a server is sent wrong bytes."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from holdfast.coordination.embedded import protocol
from tests.proofs import wire
from tests.servers import ServerProcess
from tests.servers.process import four_letter_word

SETTLE_S = 60.0
# What a server may keep over its base line: Python's own arenas and buffers that it reuses.
RSS_SLACK_BYTES = 96 * 1024 * 1024
RSS_PER_NODE_BYTES = 2_048
CONTROL_NODES = 40
CREDENTIAL = b"guard:secret"
UNEXPECTED = re.compile(r"Traceback|Unhandled|never awaited|\[(error|critical)\b")


class Harmed(Exception):
    """The server did not take it well."""


class Footprint(NamedTuple):
    """What a server holds that must not grow."""

    files: int
    connections: int
    watches: int


class Guard:
    """A well-behaved client with a subtree of its own that nobody else may write."""

    def __init__(self, server: ServerProcess) -> None:
        self.server = server
        self.beats = 0
        self.link = self._connect()
        self._build()
        self.digest = self._digest()
        self.base = self.footprint()
        self.base_sessions = self._monitor("global_sessions")
        self.base_rss = self.rss_bytes()

    def _connect(self) -> wire.Link:
        link = wire.Link(self.server.port, answer_s=SETTLE_S)
        if link.connect(timeout_ms=40_000) is None:
            raise Harmed("the server refused a good client")
        reply = link.call(-4, protocol.AUTH, wire.auth_body("digest", CREDENTIAL))
        if reply is None or reply.error:
            raise Harmed(f"the server refused a good password: {reply}")
        return link

    def _build(self) -> None:
        mine = ((31, "auth", ""), (1, "world", "anyone"))
        self._ask(protocol.CREATE, wire.create_body("/control", b"", 0, mine))
        self._ask(protocol.CREATE, wire.create_body("/control/beat", b"0", 0, mine))
        for number in range(CONTROL_NODES):
            body = wire.create_body(f"/control/node-{number}", b"%d" % number, 0, mine)
            self._ask(protocol.CREATE, body)
        self._ask(protocol.GET_DATA, wire.read_body("/control/node-0", watch=True))

    def _ask(self, opcode: int, body: bytes) -> wire.Reply:
        reply = self.link.call(7, opcode, body)
        if reply is None or reply.error:
            raise Harmed(f"a good request was answered with {reply}")
        return reply

    def ensure_playground(self) -> None:
        """Where the valid requests of the attacks play; they may have removed it."""
        for path in ("/fuzz", "/fuzz/deep"):
            self.link.call(8, protocol.CREATE, wire.create_body(path))

    def check(self) -> None:
        """Raise `Harmed` unless all is well again."""
        if self.server.process is None or self.server.process.poll() is not None:
            raise Harmed(f"the server ended:\n{self.server.output()}")
        self._beat()
        with self._connect() as other:  # somebody new is served too
            other.call(1, protocol.CLOSE_SESSION)
        if self._digest() != self.digest:
            raise Harmed("the control subtree is not what it was")
        self._await("files, connections and watches", self._at_base)
        if found := UNEXPECTED.search(self.all_output()):
            raise Harmed(f"unexpected output: {found[0]}\n{self.server.output()}")
        nodes = self._monitor("znode_count")
        data = self._monitor("approximate_data_size")
        allowed = self.base_rss + RSS_SLACK_BYTES + nodes * RSS_PER_NODE_BYTES + 3 * data
        if self.rss_bytes() > allowed:
            raise Harmed(f"the server takes {self.rss_bytes()} bytes, {allowed} at most expected")

    def leave(self) -> None:
        """Remove what was built, and go."""
        names = ["beat", *(f"node-{number}" for number in range(CONTROL_NODES))]
        for path in (*(f"/control/{name}" for name in names), "/control"):
            self._ask(protocol.DELETE, wire.versioned_body(path))
        self.link.call(9, protocol.CLOSE_SESSION)
        self.link.drop()

    def check_sessions(self) -> None:
        """Every session that nobody came back for must end."""
        self._await("sessions", lambda: self._monitor("global_sessions") <= self.base_sessions)

    def _at_base(self) -> bool:
        return all(now <= base for now, base in zip(self.footprint(), self.base, strict=True))

    def _await(self, what: str, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + SETTLE_S
        while not condition():
            if time.monotonic() > deadline:
                raise Harmed(f"{what} did not come back to the base line: {self.footprint()}")
            self._ask(protocol.PING, b"")
            time.sleep(0.05)  # pause: between two looks, each of which also asks

    def _beat(self) -> None:
        """A conditional write, which must find what the last one left."""
        self._ask(protocol.SET_DATA, wire.set_data_body("/control/beat", b"beat", self.beats))
        self.beats += 1

    def _digest(self) -> str:
        total = hashlib.sha256()
        for number in range(CONTROL_NODES):
            path = f"/control/node-{number}"
            total.update(self._ask(protocol.GET_DATA, wire.read_body(path)).body)
            total.update(self._ask(protocol.GET_ACL, wire.string(path)).body)
        reply = self._ask(protocol.GET_CHILDREN, wire.read_body("/control"))
        total.update(repr(sorted(map(str, wire.Reader(reply.body).strings() or ()))).encode())
        return total.hexdigest()

    # --- measures ------------------------------------------------------------------------------

    def footprint(self) -> Footprint:
        files = len(list(Path(f"/proc/{self.server.pid}/fd").iterdir()))
        return Footprint(
            files, self._monitor("num_alive_connections"), self._monitor("watch_count")
        )

    def _monitor(self, name: str) -> int:
        text = four_letter_word(self.server.port, "mntr", timeout_s=SETTLE_S)
        found = re.search(rf"^zk_{name}\t(\d+)$", text, re.MULTILINE)
        if found is None:
            raise Harmed(f"mntr says nothing of {name}:\n{text}")
        return int(found[1])

    def rss_bytes(self) -> int:
        status = Path(f"/proc/{self.server.pid}/status").read_text()
        found = re.search(r"^VmRSS:\s+(\d+) kB$", status, re.MULTILINE)
        assert found is not None, status
        return int(found[1]) * 1024

    def all_output(self) -> str:
        return (self.server.folder / "output.log").read_text(errors="replace")
