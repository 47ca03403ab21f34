"""Ending a session behind its owner's back, as the servers do when it was silent for too long."""

from __future__ import annotations

import time

from kazoo.client import KazooClient

from holdfast.coordination import Session, State

TRIES = 20
PATIENCE_S = 10.0


def expire(session: Session) -> None:
    """The servers end the session; returns when a new one has taken its place."""
    old, secret = session.session_id, session._client.client_id

    def replaced() -> bool:
        return session.state is State.CONNECTED and session.session_id not in (0, old)

    for _ in range(TRIES):
        _close_as_another(session, secret)
        # The owner may have taken its session back before it was closed: then once more.
        deadline_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline_s:
            if replaced():
                return
            time.sleep(0.01)
    raise AssertionError("the session could not be ended")


def _close_as_another(session: Session, secret: tuple[int, bytes]) -> None:
    thief = KazooClient(
        hosts=",".join(f"{host}:{port}" for host, port in session._client.hosts),
        client_id=secret,
        timeout=session.timeout_s,
    )
    thief.start()
    thief.stop()
    thief.close()
