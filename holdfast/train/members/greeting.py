"""What workers say to each other before a connection is a mesh's.

First both prove that they are of the job (`CalledHandshake`, `CallerHandshake`). Then frames of
JSON behind a magic word, a version and a length. A caller begins:

    meet    I am worker W of job J and want to meet in view V, round R; this is what I bring
    probe   are you there, and where are you?

and is answered:

    meet    here I am too, with what I bring: from now on the connection belongs to the mesh
    wait    I am not there yet; stay. Repeated as a sign of life
    old     I am further: in this view and round
    here    I am there (to a probe), in this view and round

Who does not speak so, is of another job, or looks for another worker is a stranger: it is cut off.
"""

from __future__ import annotations

import errno
import json
import select
import socket
import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from holdfast.system.job_credentials import Credentials
from holdfast.train.members.effective import EffectiveSetting, Record
from holdfast.train.members.tls import Connection, TlsSocket
from holdfast.wire import handshake
from holdfast.wire.errors import Refused
from holdfast.wire.handshake import Purpose, stranger
from holdfast.wire.limits import PROBE_S

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
                tuple(EffectiveSetting(str(n), str(v), int(at)) for n, v, at in body["record"]),
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


class FramedSocket:
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

    def next_frame(self) -> dict[str, Any] | None:
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


# --- who it is ------------------------------------------------------------------------------------


_PEEK: Final = socket.MSG_PEEK


class CalledHandshake:
    """The side of whoever is called."""

    def __init__(self, credentials: Credentials, purpose: Purpose, worker: int) -> None:
        self._credentials = credentials
        self._called = credentials.called(purpose, worker)
        self._known = self._answered = False

    def progress(self, frames: FramedSocket) -> int | None:
        """Who calls, once it has proven it; None: not yet. `OSError`, `EOFError` or `Refused` end
        the call."""
        if not self._known:
            first = _first_byte(frames)
            if first is None:
                return None
            if first == handshake.TLS_FIRST_BYTE:
                frames.sock = TlsSocket(_plain(frames), self._credentials.server, server=True)
            elif self._credentials.encrypts(_plain(frames)):
                raise stranger("it came from another machine, and does not speak TLS")
            self._known = True
        if isinstance(frames.sock, TlsSocket) and not frames.sock.handshake():
            return None
        if not self._answered:
            opening = frames.take(handshake.OPENING_BYTES)
            if opening is None:
                return None
            frames.put(self._called.answer(opening))
            self._answered = True
        proof = frames.take(handshake.PROOF_BYTES)
        return None if proof is None else self._called.caller(proof)


class CallerHandshake:
    """The caller's side."""

    def __init__(self, credentials: Credentials, purpose: Purpose, worker: int, to: int) -> None:
        self._credentials = credentials
        self._calling = credentials.calling(purpose, worker, to)
        self._begun = self._opened = self.done = False

    def progress(self, frames: FramedSocket) -> bool:
        """Whether both have proven themselves. `OSError`, `EOFError` or `Refused` end the call."""
        if self.done:
            return True
        if not self._begun:
            if self._credentials.encrypts(_plain(frames)):
                frames.sock = TlsSocket(_plain(frames), self._credentials.client, server=False)
            self._begun = True
        if isinstance(frames.sock, TlsSocket) and not frames.sock.handshake():
            return False
        if not self._opened:
            frames.put(self._calling.opening)
            self._opened = True
        frames.flush()
        answer = frames.take(handshake.ANSWER_BYTES)
        if answer is None:
            return False
        frames.put(self._calling.prove(answer))
        self.done = True
        return True


def _first_byte(frames: FramedSocket) -> int | None:
    try:
        first = _plain(frames).recv(1, _PEEK)
    except BlockingIOError:
        return None
    if not first:
        raise EOFError("the connection has ended")
    return first[0]


def _plain(frames: FramedSocket) -> socket.socket:
    assert isinstance(frames.sock, socket.socket), "it has TLS only once"
    return frames.sock


# --- the caller's side ----------------------------------------------------------------------------


class PeerCall:
    """One call: connect, prove, greet, hear the answers. `alive_s` is when it was last answered."""

    def __init__(self, address: str, hello: Hello, credentials: Credentials) -> None:
        """`OSError` if the address cannot be called at all."""
        host, _, port = address.rpartition(":")
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        self.peer = hello.to
        self.frames = FramedSocket(sock)
        self.alive_s = time.monotonic()
        self._connected = False
        self._hello = hello
        self._introduction = CallerHandshake(credentials, Purpose.MESH, hello.worker, hello.to)
        try:
            code = sock.connect_ex((host.strip("[]"), int(port)))
            if code not in (0, errno.EINPROGRESS):
                raise OSError(code, "the call failed")  # noqa: TRY301
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except (OSError, ValueError) as error:
            sock.close()
            raise OSError(f"{address}: {error}") from error

    @property
    def events(self) -> int:
        writes = not self._connected or self.frames.sending
        return select.POLLIN | (select.POLLOUT if writes else 0)

    def progress(self, event: int) -> dict[str, Any] | None:
        """The next answer, if there is one. `OSError`, `EOFError` or `Refused` end the call."""
        if not event:
            if time.monotonic() > self.alive_s + PROBE_S:
                raise TimeoutError("no answer")
            return None
        if not self._connected:
            code = self.frames.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                raise OSError(code, "the call failed")
            if not event & select.POLLOUT:
                return None
            self._connected = True
        if not self._introduction.done:
            if not self._introduction.progress(self.frames):
                return None
            self.frames.say(self._hello.body())
        self.frames.flush()
        answer = self.frames.next_frame()
        if answer is not None:
            self.alive_s = time.monotonic()
        return answer

    def close(self) -> None:
        self.frames.close()


def probe(
    hellos: Mapping[int, Hello],
    addresses: Mapping[int, str],
    wanted: Callable[[], bool],
    credentials: Credentials,
) -> dict[int, Epoch]:
    """Probe all of these, at the same time: whether they are there: where those are
    who answered in time. Ends early when it is not `wanted` any more."""
    calls: dict[int, PeerCall] = {}
    found: dict[int, Epoch] = {}
    poll = select.poll()
    try:
        for peer, hello in hellos.items():
            try:
                call = PeerCall(addresses.get(peer, ""), hello, credentials)
            except OSError:
                continue
            calls[call.frames.sock.fileno()] = call
            poll.register(call.frames.sock, call.events)
        while calls and wanted():
            ready = dict(poll.poll(100))
            for fd, call in list(calls.items()):
                try:
                    answer = call.progress(ready.get(fd, 0))
                    if answer is None:
                        poll.modify(fd, call.events)
                        continue
                    found[call.peer] = epoch_of(answer)
                except (OSError, EOFError, Refused):
                    pass  # no answer
                poll.unregister(fd)
                calls.pop(fd).close()
    finally:
        for call in calls.values():
            call.close()
    return found
