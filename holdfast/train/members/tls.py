"""A TLS connection with the calls of a socket that a mesh uses: the same code moves bytes over
either.

OpenSSL takes one call at a time for a connection, and a mesh sends and receives at the same time,
from two threads. So the socket below never blocks: a call holds the lock for as long as it works,
and whoever has to wait waits outside of it.
"""

from __future__ import annotations

import select
import socket
import ssl
import threading
from collections.abc import Callable, Sequence
from typing import Final

# At most this at once for a peer: others want to go on too.
_TURN_BYTES: Final = 256 * 1024
_RECORD_BYTES: Final = 16 * 1024  # the largest there is


class TlsSocket:
    """A connected socket, from now on with TLS on it. Its descriptor stays the same."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, *, server: bool) -> None:
        sock.setblocking(False)
        self._ssl = context.wrap_socket(
            sock, server_side=server, do_handshake_on_connect=False, suppress_ragged_eofs=False
        )
        self._lock = threading.Lock()
        self._blocks = False
        self._wants = 0  # what the last call that could not go on waits for

    def handshake(self) -> bool:
        """Go on with the handshake; whether it is done."""
        try:
            self._do(self._ssl.do_handshake)
        except BlockingIOError:
            return False
        return True

    @property
    def wants_write(self) -> bool:
        """Whether the last call could not go on because the kernel took no more."""
        return self._wants == select.POLLOUT

    def pending(self) -> int:
        """Bytes that are here already, and of which no poll knows."""
        return self._ssl.pending()

    # --- as a socket ---------------------------------------------------------------------------

    def send(self, data: bytes | bytearray | memoryview, flags: int = 0) -> int:
        return self.sendmsg([data], (), flags)

    def sendmsg(
        self, buffers: Sequence[bytes | bytearray | memoryview], _ancillary: object, flags: int = 0
    ) -> int:
        """Send some of it: at least a byte, or `BlockingIOError`."""
        waits = self._blocks and not flags & socket.MSG_DONTWAIT
        sent = at = offset = 0
        while at < len(buffers) and sent < _TURN_BYTES:
            record = memoryview(buffers[at])[offset:]
            if record.nbytes < _RECORD_BYTES and at + 1 < len(buffers):
                record = _joined(record, buffers[at + 1 :])
            try:
                count = self._do(lambda data=record: self._ssl.send(data), waits and not sent)  # type: ignore[misc]
            except BlockingIOError:
                if sent:
                    break
                raise
            sent += count
            while count:
                left = len(buffers[at]) - offset
                at, offset = (at + 1, 0) if count >= left else (at, offset + count)
                count -= min(count, left)
        return sent

    def recv(self, size: int, flags: int = 0) -> bytes:
        data = bytearray(size)
        return bytes(data[: self.recvmsg_into([data], 0, flags)[0]])

    def recvmsg_into(
        self, buffers: Sequence[bytearray | memoryview], _ancillary: int = 0, flags: int = 0
    ) -> tuple[int, list[object], int, None]:
        """Receive some of it: at least a byte, or `BlockingIOError`; 0 bytes at the end."""
        waits = self._blocks and not flags & socket.MSG_DONTWAIT
        got = 0
        for buffer in buffers:
            view = memoryview(buffer)
            while view.nbytes and got < _TURN_BYTES:
                try:
                    count = self._do(
                        lambda into=view: self._ssl.recv_into(into),  # type: ignore[misc]
                        waits and not got,
                    )
                except BlockingIOError:
                    if got:
                        return got, [], 0, None
                    raise
                except EOFError:
                    count = 0
                if not count:
                    return got, [], 0, None
                view = view[count:]
                got += count
        return got, [], 0, None

    def fileno(self) -> int:
        return self._ssl.fileno()

    def setblocking(self, flag: bool) -> None:
        self._blocks = flag

    def getsockopt(self, level: int, name: int) -> int:
        return self._ssl.getsockopt(level, name)

    def setsockopt(self, level: int, name: int, value: int) -> None:
        self._ssl.setsockopt(level, name, value)

    def shutdown(self, how: int) -> None:
        """End it for all who wait in it; from any thread."""
        socket.socket.shutdown(self._ssl, how)  # without the lock, and without a last word

    def close(self) -> None:
        self._ssl.close()

    def detach(self) -> int:
        return self._ssl.detach()

    # --- inside --------------------------------------------------------------------------------

    def _do(self, work: Callable[[], int | None], waits: bool = False) -> int:
        """`BlockingIOError`: it cannot go on now. `EOFError`: never again."""
        while True:
            with self._lock:
                try:
                    self._wants = 0
                    return work() or 0
                except ssl.SSLWantReadError:
                    self._wants = wants = select.POLLIN
                except ssl.SSLWantWriteError:
                    self._wants = wants = select.POLLOUT
                except (ssl.SSLZeroReturnError, ssl.SSLEOFError) as error:
                    raise EOFError("the connection has ended") from error
            if not waits:
                raise BlockingIOError
            poll = select.poll()
            poll.register(self._ssl.fileno(), wants)
            poll.poll()


def _joined(first: memoryview, others: Sequence[bytes | bytearray | memoryview]) -> memoryview:
    """A small beginning and what follows it, as one record."""
    parts, size = [first], first.nbytes
    for other in others:
        if size >= _RECORD_BYTES:
            break
        parts.append(memoryview(other)[: _RECORD_BYTES - size])
        size += parts[-1].nbytes
    return memoryview(b"".join(parts))


Connection = socket.socket | TlsSocket
