"""Two servers that are asked the same, one step at a time."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.coordination.embedded import protocol as p
from tests.proofs import wire
from tests.proofs.differential import steps as s
from tests.proofs.differential.answers import Normaliser, Record

PING = s.Call(p.PING, b"", "(barrier)")
CLOSE = s.Call(p.CLOSE_SESSION, b"", "")
_CLOSED = ("closed",)
# Steps between two barriers. An event reaches its connection before any later reply, so waiting
# costs no exactness, only the knowledge of the very step.
BARRIER_STEPS = 6
# How long a connection that must end may take for it.
END_S = 5.0


class Session(NamedTuple):
    id: int
    password: bytes


class Side:
    """One of the two servers, with a connection to it for each client."""

    def __init__(self, name: str, port: int) -> None:
        self.name = name
        self.port = port
        self.links: dict[int, wire.Link] = {}
        self.sessions: dict[int, Session] = {}
        self.normaliser = Normaliser()
        self.replies: list[tuple[s.Call, wire.Reply]] = []
        self.records: dict[int, list[Record]] = {}
        self.opened = 0
        self.last_zxid = 0

    def begin(self) -> None:
        """Forget what earlier steps brought."""
        self.replies.clear()
        self.records = {}

    def send(self, step: s.Step, xid: int) -> None:
        """The first half of a step: everything goes out before anything is read."""
        if isinstance(step, s.Talk):
            payload = b"".join(
                wire.request_frame(s.RESERVED_XIDS.get(call.op, xid + n), call.op, call.body)
                for n, call in enumerate(step.calls)
            )
            self.links[step.client].send(payload)

    def finish(self, step: s.Step) -> None:
        """The second half: read what belongs to the step."""
        if isinstance(step, s.Talk):
            self._talk(step)
        elif isinstance(step, s.Open):
            self._open(step)
        elif isinstance(step, s.Resume):
            self._resume(step)
        elif isinstance(step, s.Drop):
            # ZooKeeper forgets a connection when it sees its end. A client that comes back before
            # that finds the two mixed up, in one way or another: so wait for it.
            ended = self.links.pop(step.client).hang_up()
            self._note(step.client, _CLOSED if ended else ("still open",))
        else:
            self._visit(step)

    def send_barrier(self) -> None:
        for link in self.links.values():
            link.request(p.XID_PING, p.PING)

    def finish_barrier(self) -> None:
        """Read up to the ping's reply: whatever the step caused was sent before it."""
        for client in list(self.links):
            self._read(client, (PING,))

    def _talk(self, step: s.Talk) -> None:
        self._read(step.client, step.calls)
        last = self.records[step.client][-1] if self.records[step.client] else _CLOSED
        if last is _CLOSED or last[0] != "reply":
            return
        if step.calls[-1].op not in s.NAMES:
            self.links.pop(step.client).hang_up()
        elif step.calls[-1].op == p.CLOSE_SESSION or last[4] == p.AUTH_FAILED:
            self._read_end(step.client)

    def _open(self, step: s.Open) -> None:
        link = wire.Link(self.port)
        welcome = link.connect(
            timeout_ms=step.timeout_ms, read_only=step.read_only, last_zxid=self.last_zxid
        )
        if welcome is not None and welcome.session and welcome.password:
            self.opened += 1
            self.sessions[step.client] = Session(welcome.session, welcome.password)
            self.normaliser.name_session(
                welcome.session, f"session {self.opened} of client {step.client}"
            )
        self._settle(step.client, link, welcome)

    def _resume(self, step: s.Resume) -> None:
        session = self.sessions[step.client]
        password = session.password
        if not step.right_password:
            password = bytes(byte ^ 0x55 for byte in password)
        link = wire.Link(self.port)
        welcome = link.connect(
            session=session.id, password=password, last_zxid=self.last_zxid + step.zxid_ahead
        )
        if step.client in self.links:
            # Whether the server ended the old connection is part of the answer.
            self._read_end(step.client)
        self._settle(step.client, link, welcome)

    def _visit(self, step: s.Visit) -> None:
        with wire.Link(self.port) as link:
            welcome = link.connect(timeout_ms=step.timeout_ms, read_only=step.read_only)
            self._note(-1, self._welcome(welcome))
            if welcome is not None and welcome.session:
                reply = link.call(1, p.CLOSE_SESSION)
                self._note(-1, _CLOSED if reply is None else self.normaliser.reply(CLOSE, reply))
                self._note(-1, _CLOSED if link.receive() is None else ("still open",))

    def _settle(self, client: int, link: wire.Link, welcome: wire.Welcome | None) -> None:
        """Keep a connection that was accepted; the server must close one that it refused."""
        self._note(client, self._welcome(welcome))
        if welcome is not None and welcome.session:
            self.links[client] = link
            return
        if welcome is not None:
            self._note(client, _CLOSED if link.receive_frame() is None else ("still open",))
        link.drop()

    def _welcome(self, welcome: wire.Welcome | None) -> Record:
        if welcome is None:
            return _CLOSED
        known = self.normaliser.sessions.get(welcome.session, "new")
        password = len(welcome.password or b""), not any(welcome.password or b"")
        return ("welcome", welcome.protocol, welcome.timeout_ms, known, password, welcome.rest)

    def _note(self, client: int, record: Record) -> None:
        self.records.setdefault(client, []).append(record)

    def _read(self, client: int, calls: tuple[s.Call, ...]) -> None:
        """Events and one reply for each call; a closed connection ends it and is forgotten."""
        link = self.links[client]
        waiting = list(calls)
        while waiting:
            try:
                reply = link.receive()
            except TimeoutError:
                self._note(client, ("no answer to", str(waiting[0])))
                return
            if reply is None:
                self._note(client, _CLOSED)
                self.links.pop(client).drop()
                return
            if reply.xid == p.XID_WATCH_EVENT:
                self._note(client, self.normaliser.event(reply))
                continue
            call = waiting.pop(0)
            self.last_zxid = max(self.last_zxid, reply.zxid)
            self.replies.append((call, reply))
            self._note(client, self.normaliser.reply(call, reply))

    def _read_end(self, client: int) -> None:
        link = self.links.pop(client)
        link.answer_s = END_S
        try:
            ended = link.receive() is None
        except TimeoutError:
            ended = False
        self._note(client, _CLOSED if ended else ("still open",))
        link.drop()

    def drop_all(self) -> None:
        for link in self.links.values():
            link.drop()


class Difference(NamedTuple):
    """What one client saw on each server, where it is not the same."""

    client: int
    left: list[Record]
    right: list[Record]


def same(left: list[Record], right: list[Record]) -> bool:
    """Whether two servers' answers are equal, but for the one mistake that ours does not repeat.

    ZooKeeper 3.8.0 answers checkWatches with "yes" when anybody at all watches the path, not only
    the one who asks. Where it says "no", ours must say so too.
    """
    return len(left) == len(right) and all(
        here == there or _is_watch_of_another(here, there)
        for here, there in zip(left, right, strict=True)
    )


def _is_watch_of_another(here: Record, there: Record) -> bool:
    if here[0] != "reply" or there[0] != "reply" or not here[1].startswith("check_watches"):
        return False
    return (here[4], there[4]) == (p.OK, p.NO_WATCHER) and here[:4] == there[:4]


class Pair:
    """Both servers. `take` carries out a step on each and compares what every client received."""

    def __init__(self, left: Side, right: Side, every_step: bool = False) -> None:
        self.left = left
        self.right = right
        self.every_step = every_step  # a barrier after each: slower, and the step is known
        self.xid = 0
        self.taken = 0
        self.events = 0

    def take(self, step: s.Step) -> Difference | None:
        sides = (self.left, self.right)
        alone = not isinstance(step, s.Talk) or s.closes_session(step)
        for side in sides:
            side.begin()
        if alone:
            # What is still on its way must not be lost with what this step breaks off.
            difference = self._barrier()
            if difference is not None:
                return difference
        self.xid += 1
        for side in sides:
            side.send(step, self.xid)
        self.xid += s.requests_in(step)
        for side in sides:
            side.finish(step)
        self.taken += 1
        if alone or self.every_step or self.taken % BARRIER_STEPS == 0:
            return self._barrier()
        return self._compare()

    def _barrier(self) -> Difference | None:
        """Let everything that was caused so far arrive everywhere, and compare it."""
        for side in (self.left, self.right):
            side.send_barrier()
        for side in (self.left, self.right):
            side.finish_barrier()
        return self._compare()

    def _compare(self) -> Difference | None:
        for client in sorted({*self.left.records, *self.right.records}):
            left = self.left.records.get(client, [])
            right = self.right.records.get(client, [])
            self.events += sum(record[0] == "event" for record in left)
            if not same(left, right):
                return Difference(client, left, right)
        if set(self.left.links) != set(self.right.links):
            return Difference(-1, [("open", *self.left.links)], [("open", *self.right.links)])
        for side in (self.left, self.right):
            side.records = {}
        return None

    def possible(self, step: s.Step) -> bool:
        """Whether a step can be taken now: a shrunk sequence may miss what a step stood on."""
        links, sessions = self.left.links, self.left.sessions
        if isinstance(step, s.Talk | s.Drop):
            return step.client in links
        if isinstance(step, s.Resume):
            return step.client in sessions
        return True

    def drop_all(self) -> None:
        self.left.drop_all()
        self.right.drop_all()
