"""One session that asks in bursts until its server dies, and returns to what it left."""

from __future__ import annotations

import random
import threading

from holdfast.coordination.embedded import protocol
from tests.proofs import wire
from tests.proofs.crash.audit import Auditor, Finding
from tests.proofs.crash.model import LINE, Asker, Node, Request, State, Stream, Violation

TIMEOUT_MS = 40_000
BURST_MAX = 24


class Broken(Exception):
    """The connection ended; what was not answered may or may not have happened."""


class Writer:
    """A client with its own subtree. It keeps its session over every death of the server."""

    def __init__(self, name: str, draw: random.Random, auditor: Auditor) -> None:
        self.name = name
        self.root = f"/writer-{name}"
        self.draw = draw
        self.auditor = auditor
        self.asker = Asker(self.root, name, draw)
        self.stream = Stream(State({}))
        self.session = 0
        self.password = wire.NO_PASSWORD
        self.last_zxid = 0
        self.zxids: dict[str, int] = {}  # of our nodes, where an acknowledgement told it
        self.returned = 0  # how often the session was found again
        self.closed = 0
        self.unknown = 0  # requests whose outcome a death left open
        self.kept = 0  # of these, how many had happened

    def set_up(self, port: int) -> None:
        with self._connect(port) as link:
            for path in (self.root, f"{self.root}/counter", f"{self.root}/line"):
                self._call(link, protocol.CREATE, wire.create_body(path, b"0"))
        nodes = {name: Node(b"0", 0, False) for name in ("counter", "line")}
        self.stream = Stream(State(nodes))

    def work(self, port: int, finding: Finding, killed: threading.Event) -> None:
        """Return, compare what is there with what was promised, and ask until the server dies."""
        try:
            self.verify(port, finding)
            while True:
                with self._connect(port) as link:
                    while not self.stream.state.closed:
                        self._burst(link)
                    self._renew()
        except (Broken, ConnectionError) as error:
            if not killed.is_set():
                raise Violation(f"{self.name}: the server ended a good connection") from error

    def verify(self, port: int, finding: Finding) -> None:
        """Return, and compare what is there with what was promised."""
        with self._connect(port) as link:
            self._settle(*self._observe(link, finding.shared(self.name)), finding)

    # --- the session ---------------------------------------------------------------------------

    def _connect(self, port: int) -> wire.Link:
        link = wire.Link(port)
        welcome = link.connect(
            session=self.session,
            password=self.password,
            timeout_ms=TIMEOUT_MS,
            last_zxid=self.last_zxid,
        )
        if welcome is None:
            link.drop()
            raise Broken
        if welcome.timeout_ms == 0:
            link.drop()
            return self._refused(port)
        if self.session and welcome.session != self.session:
            raise Violation(f"{self.name}: another session id than the one that was asked for")
        self.returned += bool(self.session)
        self.session, self.password = welcome.session, welcome.password or b""
        return link

    def _refused(self, port: int) -> wire.Link:
        """Our session is gone. That may only be if we had asked for it."""
        closing = [one for one in self.stream.open if one.opcode == protocol.CLOSE_SESSION]
        if not closing:
            raise Violation(f"{self.name}: session {self.session:#x} was lost")
        while self.stream.open:
            # The close came last: all that was asked before it has happened.
            self._happened(self.stream.acknowledge())
        self._renew()
        return self._connect(port)

    def _renew(self) -> None:
        """After the end of a session: the next connection begins a new one."""
        self.closed += 1
        self.session, self.password = 0, wire.NO_PASSWORD
        state = self.stream.state
        self.stream = Stream(State(state.nodes, state.shared, state.creates))

    # --- asking --------------------------------------------------------------------------------

    def _call(self, link: wire.Link, opcode: int, body: bytes) -> wire.Reply:
        reply = link.call(1, opcode, body)
        if reply is None:
            raise Broken
        self._saw(reply.zxid)
        return reply

    def _saw(self, zxid: int) -> None:
        if zxid < self.last_zxid:
            raise Violation(f"{self.name}: zxid {zxid:#x} came after {self.last_zxid:#x}")
        self.last_zxid = zxid
        self.auditor.saw(zxid)

    def _burst(self, link: wire.Link) -> None:
        """Ask for several things at once, then read the answers."""
        frames: list[bytes] = []
        for _ in range(self.draw.randint(1, BURST_MAX)):
            self._ask(self.asker.next(self.stream.planned), frames)
        if self.draw.random() < 0.01:
            self._ask(self.asker.close(self.stream.planned), frames)
        link.send(b"".join(frames))
        while self.stream.open:
            reply = link.receive()
            if reply is None:
                raise Broken
            self._acknowledge(reply)

    def _ask(self, request: Request, frames: list[bytes]) -> None:
        self.stream.open.append(request)
        if request.pair:
            self.auditor.pair_asked(request.pair)
        frames.append(wire.request_frame(request.number, request.opcode, request.body))

    def _acknowledge(self, reply: wire.Reply) -> None:
        request = self.stream.open[0]
        if reply.xid != request.number:
            raise Violation(
                f"{self.name}: answer {reply.xid} came in the place of {request.number}"
            )
        error = reply.error or _multi_error(request, reply)
        if error != request.error:
            raise Violation(f"{self.name}: {request} was answered with {error}")
        if reply.zxid <= self.last_zxid:
            raise Violation(f"{self.name}: a write at {reply.zxid:#x} after {self.last_zxid:#x}")
        self._saw(reply.zxid)
        self.auditor.wrote(reply.zxid, f"{self.name}:{request.number}")
        self.stream.acknowledge()
        self._happened(request)
        for name in request.changed:
            self.zxids[name] = reply.zxid
        if request.pair:
            self.auditor.pair_set(reply.zxid, request.pair)
        if request.joins:
            path = wire.Reader(reply.body).string() or ""
            if not path.startswith(f"{LINE}/{self.name}-{request.number}-"):
                raise Violation(f"{self.name}: {request} was answered with {path}")
            self.asker.paths[request.number] = path
            self.auditor.joined(reply.zxid, path.rpartition("/")[2])

    def _happened(self, request: Request) -> None:
        """Forget what is no longer known by an acknowledgement."""
        for name in request.changed:
            self.zxids.pop(name, None)

    # --- comparing -----------------------------------------------------------------------------

    def _settle(self, state: State, zxids: dict[str, int], finding: Finding) -> None:
        witnessed = finding.witnessed(self.name)
        wanted = [one.number for one in self.stream.open if one.number == witnessed]
        self.unknown += len(self.stream.open)
        happened = self.stream.settle(state, self.name)
        self.kept += len(happened)
        if not {one.number for one in happened}.issuperset(wanted):
            raise Violation(f"{self.name}: only the shared half of request {witnessed} happened")
        for request in happened:
            self._happened(request)
        for name, zxid in zxids.items():
            if self.zxids.setdefault(name, zxid) != zxid:
                raise Violation(
                    f"{self.name}: {name} was set at {self.zxids[name]:#x} and now says {zxid:#x}"
                )
        self.zxids = {name: self.zxids[name] for name in zxids}

    def _observe(self, link: wire.Link, shared: frozenset[int]) -> tuple[State, dict[str, int]]:
        """Our part of the tree as it is, and the zxid of each node's last change."""
        names = [*self._children(link, ""), *(f"line/{n}" for n in self._children(link, "/line"))]
        paths = [f"{self.root}/{name}" for name in names]
        link.send(
            b"".join(
                wire.request_frame(number, protocol.GET_DATA, wire.read_body(path))
                for number, path in enumerate(paths, 1)
            )
        )
        nodes, zxids, creates = {}, {}, 0
        for name in names:
            reply = link.receive()
            if reply is None:
                raise Broken
            if reply.error:
                raise Violation(f"{self.name}: {name} is listed and cannot be read: {reply}")
            reader = wire.Reader(reply.body)
            data, stat = reader.buffer() or b"", reader.stat()
            if stat.ephemeral_owner not in (0, self.session):
                raise Violation(f"{self.name}: {name} belongs to {stat.ephemeral_owner:#x}")
            nodes[name] = Node(data, stat.version, bool(stat.ephemeral_owner))
            zxids[name] = stat.mzxid
            if name == "line":
                creates = (stat.cversion + stat.num_children) // 2
        return State(nodes, shared, creates), zxids

    def _children(self, link: wire.Link, below: str) -> list[str]:
        body = wire.read_body(self.root + below)
        reply = self._call(link, protocol.GET_CHILDREN, body)
        if reply.error:
            raise Violation(f"{self.name}: {self.root}{below} is lost: {reply.error}")
        return [name for name in wire.Reader(reply.body).strings() or () if name]


def _multi_error(request: Request, reply: wire.Reply) -> int:
    """The error of the part at which a multi failed; its header says nothing."""
    if request.opcode != protocol.MULTI:
        return 0
    reader = wire.Reader(reply.body)
    while True:
        kind, done, _ = reader.integer(), reader.boolean(), reader.integer()
        if done or kind != protocol.ERROR_RESULT:
            return 0  # one good part, and all are good
        error = reader.integer()
        if error:
            return error
