"""Ending a session behind its owner's back, as the servers do when it was silent for too long."""

from __future__ import annotations

import socket
import struct
from contextlib import suppress

from holdfast.coordination import Session, SessionState
from holdfast.coordination.embedded.protocol import CLOSE_SESSION
from tests.contract import framed
from tests.waiting import eventually

TRIES = 20
PATIENCE_S = 10.0
CLOSE = struct.pack("!iii", 8, 1, CLOSE_SESSION)


def expire(session: Session) -> None:
    """The servers end the session; returns when a new one has taken its place."""
    old, secret = session.session_id, session._client.client_id

    def replaced() -> bool:
        return session.state is SessionState.CONNECTED and session.session_id not in (0, old)

    for _ in range(TRIES):
        _close_as_another(session, secret)
        # The owner may have taken its session back before it was closed: then once more.
        with suppress(AssertionError):
            eventually(replaced, "another session has taken its place", PATIENCE_S)
            return
    raise AssertionError("the session could not be ended")


def _close_as_another(session: Session, secret: tuple[int, bytes]) -> None:
    """Take the session and close it with one write: its owner, who takes it back as soon as it
    can, has no time between the two, however slow this process is."""
    number, password = secret
    wanted = struct.pack("!iqiqi", 0, 0, int(session.timeout_s * 1000), number, len(password))
    body = wanted + password + b"\0"
    for host, port in session._client.hosts:
        try:
            link = socket.create_connection((host, port), timeout=PATIENCE_S)
        except OSError:
            continue
        framed.send(link, struct.pack("!i", len(body)) + body + CLOSE)
        while framed.read(link) is not None:
            pass
        framed.end(link)
        return
