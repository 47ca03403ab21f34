"""What workers say to each other at the door, before a connection is a mesh's.

First both prove that they are of the job (`admission`). Then frames of JSON behind a magic word, a
version and a length. A caller begins:

    meet    I am worker W of job J and want to meet in view V, round R; this is what I bring
    knock   are you there, and where are you?

and is answered:

    meet    here I am too, with what I bring: from now on the connection belongs to the mesh
    wait    I am not there yet; stay. Repeated as a sign of life
    old     I am further: in this view and round
    here    I am there (to a knock), in this view and round

Who does not speak so, is of another job, or looks for another worker is a stranger: it is cut off.
"""

from __future__ import annotations

import json
import socket
import struct
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from holdfast.train.members.effective import Record, Setting
from holdfast.train.members.tls import Connection, TlsSocket
from holdfast.wire.handshake import stranger

# The greeting of a connection, with a job's settings in it: a thousand of them, and some.
HELLO_BYTES_MAX: Final = 1024 * 1024

_HEAD: Final = struct.Struct("<4sHI")
_MAGIC: Final = b"HFm\n"
VERSION: Final = 1


class Epoch(NamedTuple):
    """A meeting: members of `view` that meet for the `round`-th time. Later ones are greater."""

    view: int
    round: int


@dataclass(frozen=True, slots=True)
class Hello:
    """Who calls whom, where they are to meet, and what the caller brings: the step that it holds
    (None: none) and what it knows of settings."""

    kind: str
    job: str
    worker: int
    to: int
    epoch: Epoch
    step: int | None = None
    record: Record = ()

    def body(self) -> dict[str, Any]:
        who = {"kind": self.kind, "job": self.job, "worker": self.worker, "to": self.to}
        what = {"step": self.step, "record": [list(setting) for setting in self.record]}
        return {**who, "epoch": list(self.epoch), **what}

    @classmethod
    def of(cls, body: dict[str, Any]) -> Hello:
        try:
            step = body["step"]
            return cls(
                str(body["kind"]),
                str(body["job"]),
                int(body["worker"]),
                int(body["to"]),
                epoch_of(body),
                None if step is None else int(step),
                tuple(Setting(str(n), str(v), int(at)) for n, v, at in body["record"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise stranger(f"{type(error).__name__}: {error}") from error


def epoch_of(body: dict[str, Any]) -> Epoch:
    try:
        view, round_ = body["epoch"]
        return Epoch(int(view), int(round_))
    except (KeyError, TypeError, ValueError) as error:
        raise stranger(f"{type(error).__name__}: {error}") from error


def answer(kind: str, epoch: Epoch) -> dict[str, Any]:
    return {"kind": kind, "epoch": list(epoch)}


class Line:
    """A connection on which frames are exchanged, without ever waiting. It reads no byte beyond a
    frame: what follows is the mesh's."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock: Connection = sock
        self._out = bytearray()
        self._in = bytearray()

    @property
    def sending(self) -> bool:
        return bool(self._out) or (isinstance(self.sock, TlsSocket) and self.sock.wants_write)

    def say(self, body: dict[str, Any]) -> None:
        data = json.dumps(body, separators=(",", ":")).encode()
        self.put(_HEAD.pack(_MAGIC, VERSION, len(data)) + data)

    def put(self, data: bytes) -> None:
        """Send it, now or when the kernel takes it."""
        self._out += data
        self.flush()

    def flush(self) -> None:
        """Send what the kernel takes now."""
        try:
            while self._out:
                del self._out[: self.sock.send(self._out, socket.MSG_NOSIGNAL)]
        except BlockingIOError:
            pass  # the rest when it can be written again

    def hear(self) -> dict[str, Any] | None:
        """The next frame; None: it is not complete yet. `EOFError`: there comes no more. `Refused`:
        no frame of ours."""
        while (missing := self._missing()) > 0:
            if not self._receive(missing):
                return None
        body, self._in = self._in[_HEAD.size :], bytearray()
        try:
            found = json.loads(body)
        except ValueError as error:
            raise stranger(str(error)) from error
        if not isinstance(found, dict):
            raise stranger("not an object")
        return found

    def take(self, size: int) -> bytes | None:
        """Exactly so many bytes that are no frame; None: they are not here yet."""
        while (missing := size - len(self._in)) > 0:
            if not self._receive(missing):
                return None
        data, self._in = bytes(self._in), bytearray()
        return data

    def _receive(self, at_most: int) -> bool:
        try:
            data = self.sock.recv(at_most)
        except BlockingIOError:
            return False
        if not data:
            raise EOFError("the connection has ended")
        self._in += data
        return True

    def _missing(self) -> int:
        if len(self._in) < _HEAD.size:
            return _HEAD.size - len(self._in)
        magic, version, size = _HEAD.unpack_from(self._in)
        if magic != _MAGIC or size > HELLO_BYTES_MAX:
            raise stranger(f"it begins with {bytes(self._in)!r}")
        if version != VERSION:
            raise stranger(f"it speaks version {version}, and we {VERSION}")
        return _HEAD.size + int(size) - len(self._in)

    def close(self) -> None:
        self.sock.close()
