"""The first words of a connection between two workers, on either side: TLS where it is wanted, then
the handshake. Nothing else is read before it has ended.

Both never wait: `progress` is called whenever something may have come.
"""

from __future__ import annotations

import socket
from typing import Final

from holdfast.train.members.hello import Line
from holdfast.train.members.tls import TlsSocket
from holdfast.wire import handshake
from holdfast.wire.handshake import Purpose, stranger
from holdfast.wire.job_credentials import Credentials

_PEEK: Final = socket.MSG_PEEK


class Admission:
    """The side of whoever is called."""

    def __init__(self, credentials: Credentials, purpose: Purpose, worker: int) -> None:
        self._credentials = credentials
        self._called = credentials.called(purpose, worker)
        self._known = self._answered = False

    def progress(self, line: Line) -> int | None:
        """Who calls, once it has proven it; None: not yet. `OSError`, `EOFError` or `Refused` end
        the call."""
        if not self._known:
            first = _first_byte(line)
            if first is None:
                return None
            if first == handshake.TLS_FIRST_BYTE:
                line.sock = TlsSocket(_plain(line), self._credentials.server, server=True)
            elif self._credentials.encrypts(_plain(line)):
                raise stranger("it came from another machine, and does not speak TLS")
            self._known = True
        if isinstance(line.sock, TlsSocket) and not line.sock.handshake():
            return None
        if not self._answered:
            opening = line.take(handshake.OPENING_BYTES)
            if opening is None:
                return None
            line.put(self._called.answer(opening))
            self._answered = True
        proof = line.take(handshake.PROOF_BYTES)
        return None if proof is None else self._called.caller(proof)


class Introduction:
    """The caller's side."""

    def __init__(self, credentials: Credentials, purpose: Purpose, worker: int, to: int) -> None:
        self._credentials = credentials
        self._calling = credentials.calling(purpose, worker, to)
        self._begun = self._opened = self.done = False

    def progress(self, line: Line) -> bool:
        """Whether both have proven themselves. `OSError`, `EOFError` or `Refused` end the call."""
        if self.done:
            return True
        if not self._begun:
            if self._credentials.encrypts(_plain(line)):
                line.sock = TlsSocket(_plain(line), self._credentials.client, server=False)
            self._begun = True
        if isinstance(line.sock, TlsSocket) and not line.sock.handshake():
            return False
        if not self._opened:
            line.put(self._calling.opening)
            self._opened = True
        line.flush()
        answer = line.take(handshake.ANSWER_BYTES)
        if answer is None:
            return False
        line.put(self._calling.prove(answer))
        self.done = True
        return True


def _first_byte(line: Line) -> int | None:
    try:
        first = _plain(line).recv(1, _PEEK)
    except BlockingIOError:
        return None
    if not first:
        raise EOFError("the connection has ended")
    return first[0]


def _plain(line: Line) -> socket.socket:
    assert isinstance(line.sock, socket.socket), "it has TLS only once"
    return line.sock
