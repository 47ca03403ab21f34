"""Who is let in: from the first frame of a connection to the end of its session.

A session is a fact in the tree; which connection speaks for it, and when it was last heard, is
known only here and forgotten at a restart.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import Final

from holdfast.coordination.embedded import connection, protocol, replies, requests
from holdfast.coordination.embedded.connection import ClientConnection
from holdfast.coordination.embedded.context import ServerContext
from holdfast.coordination.embedded.jute import Malformed
from holdfast.coordination.embedded.pipeline import PipelineEntry
from holdfast.coordination.embedded.sessions import SessionTable
from holdfast.coordination.embedded.transactions import (
    AuthIdentity,
    CloseSession,
    OpenSession,
    WriteTransaction,
)
from holdfast.system import logs

log = logs.get(__name__)

SERVER_ITSELF: Final[tuple[AuthIdentity, ...]] = ()


class SessionAdmission:
    """The sessions that live, and the connection that speaks for each."""

    def __init__(self, server: ServerContext, tick_ms: int) -> None:
        self._server = server
        self.table = SessionTable(tick_ms)
        self._connection_of: dict[int, ClientConnection] = {}
        self._ending: set[int] = set()  # sessions whose close is in the line
        # A restarted server cannot know when it last heard from anyone: all get a fresh time-out.
        for session, opened in server.tree.sessions.items():
            self.table.open(session, opened.timeout_ms, server.now_ms())

    def introduce(self, link: ClientConnection, frame: bytes) -> None:
        """The first frame of a connection: a new session, or the return of one."""
        server = self._server
        try:
            asked = requests.decode_connect(frame)
        except Malformed:
            link.abort()
            return
        if asked.last_zxid_seen > server.tree.last_zxid:
            # This client has seen a future that we have not: another server's, or a lost disk's.
            log.warning(
                "connection refused: the client has seen a later zxid than this server has",
                peer=link.peer,
                seen=hex(asked.last_zxid_seen),
                ours=hex(server.tree.last_zxid),
            )
            link.abort()
            return
        timeout_ms = self.table.clamp(asked.timeout_ms)
        link.phase = connection.OPENING
        link.says_read_only = asked.read_only is not None
        if asked.session == 0:
            # Known from now on: the client may ask for more before it has the answer.
            link.session = self._new_id()
            operation = OpenSession(timeout_ms)
            transaction = WriteTransaction(link.session, SERVER_ITSELF, operation)
            body = requests.open_session_body(timeout_ms)
            opcode = protocol.CREATE_SESSION
            server.submit(link, PipelineEntry(link, 0, opcode, body, transaction=transaction))
            return
        if self._may_return(asked.session, asked.password):
            # Only now: ZooKeeper closes the old connection also for a wrong password, and so
            # lets a stranger who saw the session's number cut its owner off.
            before = self._connection_of.get(asked.session)
            if before is not None:
                before.close()
            self._attach(link, asked.session, timeout_ms)
        else:
            link.push(replies.session_refused(with_read_only=link.says_read_only))
            link.close()

    def opened(self, link: ClientConnection, session: int, timeout_ms: int) -> None:
        """A new session is durable."""
        if link.phase == connection.CLOSED:
            # Its client left before it was let in; the session lives until its time-out.
            self.table.open(session, timeout_ms, self._server.now_ms())
        else:
            self._attach(link, session, timeout_ms)

    def touch(self, session: int) -> None:
        self.table.touch(session, self._server.now_ms())

    def disconnected(self, link: ClientConnection) -> None:
        if self._connection_of.get(link.session) is link:
            del self._connection_of[link.session]

    def ended(self, session: int, asker: ClientConnection | None) -> None:
        """A session's end is durable; nobody speaks for it any more."""
        self._ending.discard(session)
        self.table.close(session)
        current = self._connection_of.pop(session, None)
        if current is not None and current is not asker:
            current.close()

    def end_silent(self) -> None:
        """Put the ends of those who were silent too long in the line."""
        for session in self.table.expired(self._server.now_ms()):
            if session not in self._ending:
                log.info("session ends: it was silent too long", session=hex(session))
                self._ending.add(session)
                transaction = WriteTransaction(session, SERVER_ITSELF, CloseSession())
                opcode = protocol.CLOSE_SESSION
                entry = PipelineEntry(None, 0, opcode, b"", transaction=transaction)
                self._server.pipeline.submit(entry)

    def not_ended(self, session: int) -> None:
        """A silent session's end could not be written: it is found silent again later."""
        self._ending.discard(session)
        opened = self._server.tree.sessions.get(session)
        if opened is not None:
            self.table.open(session, opened.timeout_ms, self._server.now_ms())

    def _may_return(self, session: int, password: bytes) -> bool:
        known = session in self._server.tree.sessions and session not in self._ending
        return known and hmac.compare_digest(password, self._password(session))

    def _attach(self, link: ClientConnection, session: int, timeout_ms: int) -> None:
        self._connection_of[session] = link
        self.table.open(session, timeout_ms, self._server.now_ms())
        link.session = session
        link.phase = connection.OPEN
        password, form = self._password(session), link.says_read_only
        link.push(replies.connected(timeout_ms, session, password, with_read_only=form))

    def _new_id(self) -> int:
        # Random: a counter would start again with the server, and old clients would return as
        # somebody else.
        while True:
            session = secrets.randbits(63)
            if session and session not in self._server.tree.sessions:
                return session

    def _password(self, session: int) -> bytes:
        secret = self._server.store.secret
        return hmac.digest(secret, session.to_bytes(8, "big"), hashlib.sha256)[:16]
