"""A request and its answer between two members that have proven to each other that they are of the
job (`introduced`, `admitted`).

Both are states: named arrays and notes, spelled as safetensors behind a magic word, a version and a
length. One connection has one request under way.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from holdfast.system import backoff
from holdfast.system.job_credentials import Credentials
from holdfast.train.states.state import StateEntry, TrainingState
from holdfast.wire import handshake
from holdfast.wire.errors import Corrupt, PeerLost, Refused
from holdfast.wire.handshake import Purpose
from holdfast.wire.limits import HELLO_S

# A request between members: longer than a busy machine needs for a large push, shorter than it
# takes to find that a process is frozen.
ASYNC_CALL_S: Final = 5.0
# A member that did not answer is left alone for so long, then twice as long, up to the second.
ASYNC_AWAY_S: Final = 0.02
ASYNC_AWAY_S_MAX: Final = 1.0
# A push of the largest shard that one member should hold.
ASYNC_MESSAGE_BYTES_MAX: Final = 4 * 1024**3

_HEAD: Final = struct.Struct("<4sHQ")
_MAGIC: Final = b"HFa\n"
_VERSION: Final = 1


def message(notes: Mapping[str, Any], entries: Any = ()) -> TrainingState:
    return TrainingState.of(0, entries, notes)


def send(sock: socket.socket, what: TrainingState) -> None:
    buffers = what.buffers()
    size = sum(view.nbytes for view in buffers)
    sock.sendall(b"".join([_HEAD.pack(_MAGIC, _VERSION, size), *buffers]))


def receive(sock: socket.socket) -> TrainingState:
    """The next message. `EOFError`: the other side has gone; `Refused`: it is a stranger."""
    head = _read(sock, _HEAD.size)
    magic, version, size = _HEAD.unpack(head)
    if (magic, version) != (_MAGIC, _VERSION) or size > ASYNC_MESSAGE_BYTES_MAX:
        raise Refused(
            "somebody else's connection came to a worker's port",
            why=f"it began with {bytes(head[:4])!r}, version {version}",
            fix="let nothing but the workers of this cluster reach their ports",
        )
    try:
        return TrainingState.read(memoryview(_read(sock, size)))
    except Corrupt as error:
        raise Refused(
            "a message of another worker cannot be read",
            why=error.what,
            fix="run all workers of a job with the same version",
        ) from error


def introduced(sock: socket.socket, credentials: Credentials, worker: int) -> socket.socket:
    """Prove who we are to whoever was called, and let it prove itself; the connection to use from
    now on. `Refused`: it has not."""
    if credentials.encrypts(sock):
        sock = credentials.client.wrap_socket(sock, suppress_ragged_eofs=False)
    calling = credentials.calling(Purpose.SHARD, worker, handshake.ANYBODY)
    sock.sendall(calling.opening)
    sock.sendall(calling.prove(_read(sock, handshake.ANSWER_BYTES)))
    return sock


def admitted(sock: socket.socket, credentials: Credentials, worker: int) -> socket.socket:
    """Let a caller prove who it is; the connection to use from now on. `Refused`: it has not.
    Nothing beyond the frames of the handshake was read."""
    until_s = time.monotonic() + HELLO_S
    sock.settimeout(HELLO_S)
    if sock.recv(1, socket.MSG_PEEK) == bytes([handshake.TLS_FIRST_BYTE]):
        sock = credentials.server.wrap_socket(sock, server_side=True, suppress_ragged_eofs=False)
    elif credentials.encrypts(sock):
        raise handshake.stranger("it came from another machine, and does not speak TLS")
    called = credentials.called(Purpose.SHARD, worker)
    sock.sendall(called.answer(_read(sock, handshake.OPENING_BYTES, until_s)))
    called.caller(_read(sock, handshake.PROOF_BYTES, until_s))
    sock.settimeout(None)
    return sock


class Peers:
    """Connections to other members, for one thread. A peer that could not be reached is left alone
    for a moment, then for longer."""

    def __init__(self, credentials: Credentials, worker: int) -> None:
        self._credentials = credentials
        self._worker = worker
        self._who = {"job": credentials.job, "worker": worker}
        self._lines: dict[str, socket.socket] = {}
        self._away: dict[str, tuple[float, int]] = {}  # address -> until when, failures

    def call(
        self,
        address: str,
        notes: Mapping[str, Any],
        entries: list[StateEntry] | None = None,
        *,
        within_s: float = ASYNC_CALL_S,
    ) -> TrainingState:
        """Ask, and wait for the answer. `PeerLost`: there is none."""
        until_s, failures = self._away.get(address, (0.0, 0))
        if time.monotonic() < until_s:
            raise PeerLost(f"the member at {address} is away")
        try:
            line = self._lines.get(address) or self._connect(address, within_s)
            line.settimeout(within_s)
            send(line, message({**notes, "from": self._who}, entries or ()))
            answer = receive(line)
        except (OSError, EOFError, Refused) as error:
            self._drop(address)
            pause_s = backoff.pause_s(failures + 1, ASYNC_AWAY_S, ASYNC_AWAY_S_MAX)
            self._away[address] = (time.monotonic() + pause_s, failures + 1)
            raise PeerLost(f"the member at {address} is away", why=str(error)) from error
        self._away.pop(address, None)
        return answer

    def close(self) -> None:
        for address in list(self._lines):
            self._drop(address)

    def _connect(self, address: str, within_s: float) -> socket.socket:
        host, _, port = address.rpartition(":")
        line = socket.create_connection((host.strip("[]"), int(port)), timeout=within_s)
        try:
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            line = introduced(line, self._credentials, self._worker)
        except BaseException:
            line.close()
            raise
        self._lines[address] = line
        return line

    def _drop(self, address: str) -> None:
        line = self._lines.pop(address, None)
        if line is not None:
            with suppress(OSError):
                line.close()


def _read(sock: socket.socket, size: int, until_s: float | None = None) -> bytearray:
    data = bytearray(size)
    view, at = memoryview(data), 0
    while at < size:
        if until_s is not None:  # however slowly it comes
            sock.settimeout(max(0.001, until_s - time.monotonic()))
        got = sock.recv_into(view[at:])
        if not got:
            raise EOFError("the connection has ended")
        at += got
    return data
