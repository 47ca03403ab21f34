"""The server: what frames mean, who is connected, what is applied when.

All of it runs in one event loop and never waits: durable writes come back from the pipeline,
time comes from a sweep four times a second.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
import struct
from collections.abc import Callable
from typing import Final

from holdfast.coordination.embedded import acl, connection, protocol, reads, replies, requests
from holdfast.coordination.embedded.connection import Connection
from holdfast.coordination.embedded.jute import Malformed
from holdfast.coordination.embedded.pipeline import Entry, Pipeline
from holdfast.coordination.embedded.records import encode_identities
from holdfast.coordination.embedded.sessions import SessionTable
from holdfast.coordination.embedded.store import Store
from holdfast.coordination.embedded.transactions import (
    CloseSession,
    DeleteContainer,
    Event,
    Identity,
    OpenSession,
    Reject,
    Transaction,
)
from holdfast.coordination.embedded.tree import OperationError
from holdfast.coordination.embedded.watches import WatchTable
from holdfast.coordination.embedded.words import Counters, answer_word
from holdfast.wire import limits, logs
from holdfast.wire.clock import Clock
from holdfast.wire.errors import Full

log = logs.get(__name__)

_REQUEST: Final = struct.Struct("!ii")
_SERVER_ITSELF: Final[tuple[Identity, ...]] = ()


class Server:
    """The state in memory and everyone connected to it."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        store: Store,
        clock: Clock,
        *,
        tick_ms: int = limits.TICK_MS,
        on_broken: Callable[[BaseException], None],
    ) -> None:
        self.loop = loop
        self.store = store
        self.tree = store.tree
        self.clock = clock
        self.watches: WatchTable[Connection] = WatchTable()
        self.sessions = SessionTable(tick_ms)
        self.counters = Counters(since_s=clock.now_s())
        self.connections: set[Connection] = set()
        self.tick_ms = tick_ms
        self.pipeline = Pipeline(
            loop,
            store,
            clock,
            on_committed=self._committed,
            on_full=self._disk_full,
            on_broken=on_broken,
        )
        self._connection_of: dict[int, Connection] = {}
        self._ending: set[int] = set()  # sessions whose close is in the line
        self._new: dict[Connection, None] = {}  # not introduced yet, oldest first
        self._closing: dict[Connection, float] = {}
        self._dirty: set[Connection] = set()
        self._swept_s = clock.now_s()
        self._containers_swept_s = clock.now_s()
        self._removing: set[str] = set()
        self.idle_since_s = clock.now_s()
        self.disk_full = ""
        # A restarted server cannot know when it last heard from anyone: all get a fresh time-out.
        for session, opened in self.tree.sessions.items():
            self.sessions.open(session, opened.timeout_ms, self._now_ms())

    # --- connections come and go --------------------------------------------------------------

    def connected(self, link: Connection) -> None:
        if len(self.connections) >= limits.CONNECTIONS_MAX:
            log.warning("connection refused: too many", limit=limits.CONNECTIONS_MAX)
            link.abort()
            return
        link.since_s = self.clock.now_s()
        name = link.transport.get_extra_info("peername")
        address = name[0] if isinstance(name, tuple) else "127.0.0.1"
        link.identities = (Identity("ip", address),)
        link.identities_encoded = encode_identities(link.identities)
        self.connections.add(link)
        self._new[link] = None

    def disconnected(self, link: Connection) -> None:
        self.connections.discard(link)
        self.counters.sent_closed += link.sent
        self._new.pop(link, None)
        self._closing.pop(link, None)
        self._dirty.discard(link)
        self.watches.drop(link)
        if self._connection_of.get(link.session) is link:
            del self._connection_of[link.session]
        if not self.connections:
            self.idle_since_s = self.clock.now_s()

    def closing(self, link: Connection) -> None:
        """A connection ends as soon as its client has read the rest."""
        self._closing[link] = self.clock.now_s()
        self.watches.drop(link)

    def overrun(self, link: Connection) -> None:
        log.warning("connection closed: it does not read its answers", peer=link.peer)
        link.abort()

    def close_all(self) -> None:
        for link in list(self.connections):
            link.close()

    # --- what a frame means -------------------------------------------------------------------

    def word(self, link: Connection, letters: bytes) -> bool:
        """Answer a four-letter word; False if it is not one."""
        answer = answer_word(self, letters)
        if answer is None:
            return False
        link.push(answer.encode())
        link.close()
        return True

    def frame(self, link: Connection, frame: bytes) -> None:
        self.counters.received += 1
        if link.phase == connection.NEW:
            self._introduce(link, frame)
            return
        try:
            xid, opcode = _REQUEST.unpack_from(frame)
        except struct.error:
            link.abort()
            return
        body = frame[8:]
        if link.session:
            self.sessions.touch(link.session, self._now_ms())
        if opcode in requests.WRITE_OPCODES:
            self._submit_write(link, xid, opcode, body)
        elif opcode == protocol.PING:
            # At once, even with writes in the line: a slow disk must not look like a dead server.
            link.push(replies.reply(xid, self.tree.last_zxid, protocol.OK))
        elif opcode == protocol.AUTH:
            # The identity counts for what follows in the same breath; the answer keeps its place.
            body = self._authenticate(link, body)
            self._in_turn(link, xid, opcode, body)
        else:
            self._in_turn(link, xid, opcode, body)

    def _in_turn(self, link: Connection, xid: int, opcode: int, body: bytes) -> None:
        """Answer now if nothing of this connection is in the line, else after it."""
        if link.pending or (opcode == protocol.SYNC and self.pipeline.waiting):
            self._submit(link, Entry(link, xid, opcode, body, since_s=self.clock.now_s()))
        else:
            self._answer(link, xid, opcode, body)

    def _submit(self, link: Connection, entry: Entry) -> None:
        link.queued(len(entry.body))
        self.pipeline.submit(entry)

    def _submit_write(self, link: Connection, xid: int, opcode: int, body: bytes) -> None:
        try:
            operation = requests.decode_write(opcode, body)
        except Malformed:
            # ZooKeeper gives such a write a number of its own, too.
            operation = Reject(protocol.MARSHALLING_ERROR)
        if isinstance(operation, Reject):
            opcode, body = protocol.ERROR_RESULT, requests.reject_body(operation.error)
        transaction = Transaction(link.session, link.identities, operation)
        entry = Entry(
            link,
            xid,
            opcode,
            body,
            transaction=transaction,
            identities=link.identities_encoded,
            since_s=self.clock.now_s(),
        )
        self._submit(link, entry)

    def _answer(self, link: Connection, xid: int, opcode: int, body: bytes) -> None:
        tree = self.tree
        if opcode == protocol.AUTH:
            error = protocol.OK if body else protocol.AUTH_FAILED
            link.push(replies.reply(xid, tree.last_zxid, error))
            if error:
                link.close()
            return
        handler = reads.HANDLERS.get(opcode)
        if handler is None:
            link.push(replies.reply(xid, -1, protocol.UNIMPLEMENTED))
            return
        try:
            answer = handler(self, link, body)
        except OperationError as refusal:
            link.push(replies.reply(xid, tree.last_zxid, refusal.code))
        except Malformed:
            link.push(replies.reply(xid, tree.last_zxid, protocol.MARSHALLING_ERROR))
        else:
            link.push(replies.reply(xid, tree.last_zxid, protocol.OK, answer))

    def _authenticate(self, link: Connection, body: bytes) -> bytes:
        try:
            shown = reads.authenticate(link, body)
        except Malformed:
            shown = False
        link.identities_encoded = encode_identities(link.identities)
        return b"shown" if shown else b""

    # --- sessions -----------------------------------------------------------------------------

    def _introduce(self, link: Connection, frame: bytes) -> None:
        """The first frame of a connection: a new session, or the return of one."""
        self._new.pop(link, None)
        try:
            asked = requests.decode_connect(frame)
        except Malformed:
            link.abort()
            return
        if asked.last_zxid_seen > self.tree.last_zxid:
            # This client has seen a future that we have not: another server's, or a lost disk's.
            log.warning(
                "connection refused: the client has seen a later zxid than this server has",
                peer=link.peer,
                seen=hex(asked.last_zxid_seen),
                ours=hex(self.tree.last_zxid),
            )
            link.abort()
            return
        timeout_ms = self.sessions.clamp(asked.timeout_ms)
        link.phase = connection.OPENING
        if asked.session == 0:
            session = self._new_session_id()
            body = requests.open_session_body(timeout_ms)
            transaction = Transaction(session, _SERVER_ITSELF, OpenSession(timeout_ms))
            xid = 0 if asked.read_only is None else 1
            self._submit(
                link, Entry(link, xid, protocol.CREATE_SESSION, body, transaction=transaction)
            )
            return
        known = asked.session in self.tree.sessions and asked.session not in self._ending
        if not known or not hmac.compare_digest(asked.password, self._password(asked.session)):
            link.push(replies.session_refused(read_only=asked.read_only))
            link.close()
            return
        self._attach(link, asked.session, timeout_ms, read_only=asked.read_only)

    def _attach(
        self, link: Connection, session: int, timeout_ms: int, *, read_only: bool | None
    ) -> None:
        before = self._connection_of.get(session)
        if before is not None and before is not link:
            before.close()
        self._connection_of[session] = link
        self.sessions.open(session, timeout_ms, self._now_ms())
        link.session = session
        link.phase = connection.OPEN
        password = self._password(session)
        link.push(replies.connected(timeout_ms, session, password, read_only=read_only))

    def _new_session_id(self) -> int:
        while True:
            session = secrets.randbits(63)
            if session and session not in self.tree.sessions:
                return session

    def _password(self, session: int) -> bytes:
        return hmac.digest(self.store.secret, session.to_bytes(8, "big"), hashlib.sha256)[:16]

    def _end_session(self, session: int) -> None:
        """Put the end of a silent session in the line."""
        if session in self._ending:
            return
        self._ending.add(session)
        transaction = Transaction(session, _SERVER_ITSELF, CloseSession())
        self.pipeline.submit(Entry(None, 0, protocol.CLOSE_SESSION, b"", transaction=transaction))

    # --- what comes back from the pipeline ----------------------------------------------------

    def _committed(self, batch: list[Entry], time_ms: int) -> None:
        self.disk_full = ""
        for entry in batch:
            link = entry.owner
            if entry.transaction is None:
                assert isinstance(link, Connection)
                link.answered(len(entry.body))
                if link.phase != connection.CLOSED:
                    self._answer(link, entry.xid, entry.opcode, entry.body)
                    self._dirty.add(link)
            else:
                self._apply(entry, entry.transaction, time_ms)
        self._flush()

    def _apply(self, entry: Entry, transaction: Transaction, time_ms: int) -> None:
        outcome = self.tree.apply(transaction, entry.zxid, time_ms)
        for event in outcome.events:
            self._tell(event)
        operation = transaction.operation
        if isinstance(operation, CloseSession):
            self._session_ended(transaction.session, entry)
            return
        if isinstance(operation, DeleteContainer):
            self._removing.discard(operation.path)
            return
        link = entry.owner
        assert isinstance(link, Connection)
        link.answered(len(entry.body))
        self._dirty.add(link)
        if isinstance(operation, OpenSession):
            read_only = None if entry.xid == 0 else False
            if link.phase == connection.CLOSED:
                # It left before it was let in; the session lives until its time-out.
                self.sessions.open(transaction.session, operation.timeout_ms, self._now_ms())
            else:
                self._attach(link, transaction.session, operation.timeout_ms, read_only=read_only)
            return
        body = replies.outcome_body(operation, outcome)
        link.push(replies.reply(entry.xid, entry.zxid, outcome.error, body))
        self.counters.took(self.clock.now_s() - entry.since_s)

    def _session_ended(self, session: int, entry: Entry) -> None:
        self._ending.discard(session)
        self.sessions.close(session)
        link = entry.owner
        if isinstance(link, Connection):
            link.answered(len(entry.body))
            link.push(replies.reply(entry.xid, entry.zxid, protocol.OK))
            link.close()
        current = self._connection_of.pop(session, None)
        if current is not None and current is not link:
            current.close()

    def _tell(self, event: Event) -> None:
        """Send an event to those who watch and may read what it is about."""
        encoded: dict[tuple[int, str], bytes] = {}
        for link, kind, path in self.watches.fire(event):
            if not acl.permits(event.acl, protocol.PERM_READ, link.identities):
                continue
            data = encoded.get((kind, path))
            if data is None:
                data = encoded[kind, path] = replies.event(kind, path)
            link.push(data)
            self._dirty.add(link)

    def _disk_full(self, batch: list[Entry], error: Full) -> None:
        """Nothing of this batch was kept: say so to each that asked; reads go on."""
        if not self.disk_full:
            log.error("writes stopped: the disk is full", error=error.what, fix=error.fix)
        self.disk_full = error.what
        for entry in batch:
            link, transaction = entry.owner, entry.transaction
            if isinstance(link, Connection):
                link.answered(len(entry.body))
                self._dirty.add(link)
                if entry.transaction is None:
                    self._answer(link, entry.xid, entry.opcode, entry.body)
                elif entry.opcode == protocol.CREATE_SESSION:
                    link.abort()
                else:
                    error_code = protocol.SYSTEM_ERROR
                    link.push(replies.reply(entry.xid, self.tree.last_zxid, error_code))
            elif transaction is not None and isinstance(transaction.operation, CloseSession):
                # It stays, and is found silent again after one more time-out.
                self._ending.discard(transaction.session)
                timeout_ms = self.tree.sessions[transaction.session].timeout_ms
                self.sessions.open(transaction.session, timeout_ms, self._now_ms())
            elif transaction is not None and isinstance(transaction.operation, DeleteContainer):
                self._removing.discard(transaction.operation.path)
        self._flush()

    def _flush(self) -> None:
        dirty, self._dirty = self._dirty, set()
        for link in dirty:
            link.flush()

    # --- time ---------------------------------------------------------------------------------

    def _now_ms(self) -> int:
        return int(self.clock.now_s() * 1000)

    def sweep(self) -> None:
        """What has to happen because time passed."""
        now_s = self.clock.now_s()
        late_s, self._swept_s = now_s - self._swept_s - limits.SWEEP_S, now_s
        if late_s * 1000 > self.tick_ms:
            # We were paused (a sleeping laptop, SIGSTOP): nobody could have reached us.
            log.warning("the server was paused; every session gets a fresh time-out", s=late_s)
            self.sessions.refresh(self._now_ms())
        for session in self.sessions.expired(self._now_ms()):
            self._end_session(session)
        for link in [link for link in self._new if now_s - link.since_s > limits.HANDSHAKE_S]:
            link.abort()
        overdue = [
            link for link, since_s in self._closing.items() if now_s - since_s > limits.CLOSE_S
        ]
        for link in overdue:
            link.abort()
        if now_s - self._containers_swept_s >= limits.CONTAINER_SWEEP_S:
            self._containers_swept_s = now_s
            self._remove_containers()

    def _remove_containers(self) -> None:
        for path in self.tree.due_containers(self.clock.wall_ms()):
            if path not in self._removing:
                self._removing.add(path)
                body = requests.delete_container_body(path)
                transaction = Transaction(0, _SERVER_ITSELF, DeleteContainer(path))
                opcode = protocol.DELETE_CONTAINER
                self.pipeline.submit(Entry(None, 0, opcode, body, transaction=transaction))
