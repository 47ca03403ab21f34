"""The server: what frames mean, who is connected, what is applied when.

All of it runs in one event loop and never waits: durable writes come back from the pipeline,
time comes from a sweep four times a second.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Final

from holdfast.coordination.embedded import acl, connection, protocol, reads, replies, requests
from holdfast.coordination.embedded.admission import SERVER_ITSELF, SessionAdmission
from holdfast.coordination.embedded.connection import ClientConnection
from holdfast.coordination.embedded.context import ServerContext
from holdfast.coordination.embedded.four_letter_words import answer_word
from holdfast.coordination.embedded.jute import Malformed
from holdfast.coordination.embedded.pipeline import Pipeline, PipelineEntry
from holdfast.coordination.embedded.records import encode_identities
from holdfast.coordination.embedded.store import Store
from holdfast.coordination.embedded.transactions import (
    AuthIdentity,
    CloseSession,
    DeleteContainer,
    OpenSession,
    Operation,
    Reject,
    TreeEvent,
    WriteTransaction,
)
from holdfast.coordination.embedded.tree import OperationError
from holdfast.system import logs
from holdfast.system.clock import Clock
from holdfast.wire.errors import Full
from holdfast.wire.limits import CONNECTIONS_MAX, HANDSHAKE_S, SWEEP_S, TICK_MS

# A connection that was told to end and whose peer does not read the rest is cut after this.
CLOSE_S: Final = 5.0
# How often empty containers and outlived TTL nodes are removed.
CONTAINER_SWEEP_S: Final = 5.0

log = logs.get(__name__)

_REQUEST: Final = struct.Struct("!ii")


class CoordinationServer(ServerContext):
    """The state in memory and everyone connected to it."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        store: Store,
        clock: Clock,
        *,
        tick_ms: int = TICK_MS,
        tells_all: bool = False,
        on_broken: Callable[[BaseException], None],
    ) -> None:
        super().__init__(loop, store, clock, tick_ms)
        self.tells_all = tells_all
        self.pipeline = Pipeline(
            loop,
            store,
            clock,
            on_committed=self._committed,
            on_full=self._disk_full,
            on_broken=on_broken,
        )
        self._new: dict[ClientConnection, None] = {}  # not introduced yet, oldest first
        self._closing: dict[ClientConnection, float] = {}
        self._dirty: set[ClientConnection] = set()
        self._swept_s = clock.now_s()
        self._containers_swept_s = clock.now_s()
        self._removing: set[str] = set()
        self.idle_since_s = clock.now_s()
        self.admission = SessionAdmission(self, tick_ms)

    # --- connections come and go --------------------------------------------------------------

    def connected(self, link: ClientConnection) -> None:
        if len(self.connections) >= CONNECTIONS_MAX:
            log.warning("connection refused: too many", limit=CONNECTIONS_MAX)
            link.abort()
            return
        link.since_s = self.clock.now_s()
        name = link.transport.get_extra_info("peername")
        address = name[0] if isinstance(name, tuple) else "127.0.0.1"
        link.identities = (AuthIdentity("ip", address),)
        link.identities_encoded = encode_identities(link.identities)
        self.connections.add(link)
        self._new[link] = None

    def disconnected(self, link: ClientConnection) -> None:
        self.connections.discard(link)
        self.counters.sent_closed += link.sent
        self._new.pop(link, None)
        self._closing.pop(link, None)
        self._dirty.discard(link)
        self.watches.drop(link)
        self.admission.disconnected(link)
        if not self.connections:
            self.idle_since_s = self.clock.now_s()

    def closing(self, link: ClientConnection) -> None:
        """A connection ends as soon as its client has read the rest."""
        self._closing[link] = self.clock.now_s()
        self.watches.drop(link)

    def overrun(self, link: ClientConnection) -> None:
        log.warning("connection closed: it does not read its answers", peer=link.peer)
        link.abort()

    def close_all(self) -> None:
        for link in list(self.connections):
            link.close()

    # --- what a frame means -------------------------------------------------------------------

    def word(self, link: ClientConnection, letters: bytes) -> bool:
        """Answer a four-letter word; False if it is not one."""
        answer = answer_word(self, letters)
        if answer is None:
            return False
        link.push(answer.encode())
        link.close()
        return True

    def frame(self, link: ClientConnection, frame: bytes) -> None:
        self.counters.received += 1
        if link.phase == connection.NEW:
            self._new.pop(link, None)
            self.admission.introduce(link, frame)
            return
        try:
            xid, opcode = _REQUEST.unpack_from(frame)
        except struct.error:
            link.abort()
            return
        body = frame[8:]
        if link.session:
            self.admission.touch(link.session)
        if opcode in requests.WRITE_OPCODES:
            self._submit_write(link, xid, opcode, body, requests.read_write(opcode, body))
        elif opcode == protocol.RECONFIG and requests.is_reconfig(body):
            # A single node has no ensemble to change; ZooKeeper says so after it gave a zxid.
            self._submit_write(link, xid, opcode, body, Reject(protocol.UNIMPLEMENTED))
        elif opcode == protocol.PING and self.pipeline.stalled:
            # Out of turn, which clients allow: a slow disk must not look like a dead server.
            link.push(replies.reply(xid, self.tree.last_zxid, protocol.OK))
        elif opcode == protocol.AUTH:
            # The identity counts for what follows in the same breath; the answer keeps its place.
            body = self._authenticate(link, body)
            self._in_turn(link, xid, opcode, body)
        else:
            self._in_turn(link, xid, opcode, body)

    def _in_turn(self, link: ClientConnection, xid: int, opcode: int, body: bytes) -> None:
        """Answer now if nothing of this connection is in the line, else after it."""
        if link.pending or (opcode == protocol.SYNC and self.pipeline.waiting):
            self.submit(link, PipelineEntry(link, xid, opcode, body, since_s=self.clock.now_s()))
        else:
            self._answer(link, xid, opcode, body)

    def _submit_write(
        self, link: ClientConnection, xid: int, opcode: int, body: bytes, operation: Operation
    ) -> None:
        if isinstance(operation, Reject):
            opcode, body = protocol.ERROR_RESULT, requests.reject_body(operation.error)
        transaction = WriteTransaction(link.session, link.identities, operation)
        entry = PipelineEntry(
            link,
            xid,
            opcode,
            body,
            transaction=transaction,
            identities=link.identities_encoded,
            since_s=self.clock.now_s(),
        )
        self.submit(link, entry)

    def _answer(self, link: ClientConnection, xid: int, opcode: int, body: bytes) -> None:
        tree = self.tree
        if opcode == protocol.AUTH:
            error = protocol.OK if body else protocol.AUTH_FAILED
            link.push(replies.reply(xid, 0, error))
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

    def _authenticate(self, link: ClientConnection, body: bytes) -> bytes:
        try:
            shown = reads.authenticate(link, body)
        except Malformed:
            shown = False
        link.identities_encoded = encode_identities(link.identities)
        return b"shown" if shown else b""

    # --- what comes back from the pipeline ----------------------------------------------------

    def _committed(self, batch: list[PipelineEntry], time_ms: int) -> None:
        self.disk_full = ""
        for entry in batch:
            link = entry.owner
            if entry.transaction is None:
                assert isinstance(link, ClientConnection)
                link.answered(len(entry.body))
                if link.phase != connection.CLOSED:
                    self._answer(link, entry.xid, entry.opcode, entry.body)
                    self._dirty.add(link)
            else:
                self._apply(entry, entry.transaction, time_ms)
        self._flush()

    def _apply(self, entry: PipelineEntry, transaction: WriteTransaction, time_ms: int) -> None:
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
        assert isinstance(link, ClientConnection)
        link.answered(len(entry.body))
        self._dirty.add(link)
        if isinstance(operation, OpenSession):
            self.admission.opened(link, transaction.session, operation.timeout_ms)
            return
        body = replies.outcome_body(operation, outcome)
        link.push(replies.reply(entry.xid, entry.zxid, outcome.error, body))
        self.counters.took(self.clock.now_s() - entry.since_s)

    def _session_ended(self, session: int, entry: PipelineEntry) -> None:
        link = entry.owner
        assert link is None or isinstance(link, ClientConnection)
        if link is not None:
            link.answered(len(entry.body))
            link.push(replies.reply(entry.xid, entry.zxid, protocol.OK))
            link.close()
        self.admission.ended(session, link)

    def _tell(self, event: TreeEvent) -> None:
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

    def _disk_full(self, batch: list[PipelineEntry], error: Full) -> None:
        """Nothing of this batch was kept: say so to each that asked; reads go on."""
        if not self.disk_full:
            log.error("writes stopped: the disk is full", error=error.what, fix=error.fix)
        self.disk_full = error.what
        for entry in batch:
            link, transaction = entry.owner, entry.transaction
            if isinstance(link, ClientConnection):
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
                self.admission.not_ended(transaction.session)
            elif transaction is not None and isinstance(transaction.operation, DeleteContainer):
                self._removing.discard(transaction.operation.path)
        self._flush()

    def _flush(self) -> None:
        dirty, self._dirty = self._dirty, set()
        for link in dirty:
            link.flush()

    # --- time ---------------------------------------------------------------------------------

    def sweep(self) -> None:
        """What has to happen because time passed."""
        now_s = self.clock.now_s()
        late_s, self._swept_s = now_s - self._swept_s - SWEEP_S, now_s
        if late_s * 1000 > self.tick_ms:
            # We were paused (a sleeping laptop, SIGSTOP): nobody could have reached us.
            log.warning("the server was paused; every session gets a fresh time-out", s=late_s)
            self.admission.table.refresh(self.now_ms())
        self.admission.end_silent()
        for link in [link for link in self._new if now_s - link.since_s > HANDSHAKE_S]:
            link.abort()
        overdue = [link for link, since_s in self._closing.items() if now_s - since_s > CLOSE_S]
        for link in overdue:
            link.abort()
        if now_s - self._containers_swept_s >= CONTAINER_SWEEP_S:
            self._containers_swept_s = now_s
            self._remove_containers()

    def _remove_containers(self) -> None:
        for path in self.tree.due_containers(self.clock.wall_ms()):
            if path not in self._removing:
                self._removing.add(path)
                body = requests.delete_container_body(path)
                transaction = WriteTransaction(0, SERVER_ITSELF, DeleteContainer(path))
                opcode = protocol.DELETE_CONTAINER
                self.pipeline.submit(PipelineEntry(None, 0, opcode, body, transaction=transaction))
