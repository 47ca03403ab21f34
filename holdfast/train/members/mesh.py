"""Sockets between all members of a view, made anew for every meeting.

    mesh.send(peer, *buffers, tag=...)         # nothing is copied; returns when the kernel has it
    mesh.recv_into(peer, *buffers, tag=...)    # fills them exactly
    mesh.exchange(sends, receives, tag=...)    # with many at once, in this thread, without deadlock
    mesh.close()

What is sent arrives whole and in order, or `PeerLost` is raised. A message carries a tag and its
length; one that is not the expected one is a `BugError`, never taken for data. At each moment one
thread may send to a peer and another may receive from it; different peers are independent.

A mesh breaks as a whole. Whoever notices that a peer is gone closes all of it, so the others notice
too, within milliseconds; from then on every call raises `PeerLost`. There is no repair: members
meet again and get a new mesh.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

from holdfast.train.members.tls import Connection, TlsSocket
from holdfast.wire.errors import BugError, Occupied, PeerLost
from holdfast.wire.limits import PEER_SILENCE_S

Buffer = Any  # whatever has the buffer protocol and is contiguous
_HEADER: Final = struct.Struct("<IQ")  # tag, bytes
_GONE: Final = select.POLLRDHUP | select.POLLHUP | select.POLLERR
_open: weakref.WeakSet[Mesh] = weakref.WeakSet()


class Mesh:
    """The connections of one member, `worker`, in one meeting. `peers`: all other members."""

    def __init__(
        self, worker: int, view: int, round_: int, sockets: Mapping[int, Connection]
    ) -> None:
        self.worker = worker
        self.view = view
        self.round = round_
        self.peers: tuple[int, ...] = tuple(sorted(sockets))
        self._wires = {peer: Wire(sock) for peer, sock in sockets.items()}
        self._lock = threading.Lock()
        self._why: PeerLost | None = None
        self._waiting: dict[tuple[int, int], float] = {}  # (peer, thread) -> since when
        _open.add(self)

    def __repr__(self) -> str:
        return f"Mesh(worker {self.worker}, view {self.view}.{self.round}, peers {self.peers})"

    @property
    def broken(self) -> PeerLost | None:
        """Why it is of no use any more; None: it is whole, as far as is known."""
        return self._why

    def send(self, peer: int, *buffers: Buffer, tag: int = 0) -> None:
        """One message of all these bytes. When it returns the kernel has them."""
        views = views_of(buffers)
        message = Outbound([memoryview(_HEADER.pack(tag, _size(views))), *views])
        with self._use(peer) as wire:
            while not message.push(wire.sock):
                pass

    def recv_into(self, peer: int, *buffers: Buffer, tag: int = 0) -> None:
        """One message into these buffers; it must have exactly their size."""
        views = views_of(buffers)
        with self._use(peer) as wire:
            head = _pull_header(wire.sock)
            self._check(peer, head, (tag, _size(views)))
            _pull(wire.sock, views)

    def recv(self, peer: int, tag: int = 0, limit_bytes: int = 1024 * 1024) -> bytearray:
        """One message whose size only its sender knows."""
        with self._use(peer) as wire:
            found, size = _HEADER.unpack(_pull_header(wire.sock))
            if found != tag or size > limit_bytes:
                raise self._confused(peer, (found, size), (tag, limit_bytes))
            data = bytearray(size)
            _pull(wire.sock, views_of([data]))
        return data

    def exchange(
        self,
        sends: Mapping[int, Sequence[Buffer]],
        receives: Mapping[int, Sequence[Buffer]],
        *,
        tag: int = 0,
        done: Callable[[int], None] | None = None,
    ) -> None:
        """One message to each of `sends` and one from each of `receives`, all at the same time, in
        this thread. Returns when all are through. `done(peer)` is called when that one's message is
        here, in the order of arrival."""
        outs, ins = {}, {}
        for peer, buffers in sends.items():
            views = views_of(buffers)
            outs[peer] = Outbound([memoryview(_HEADER.pack(tag, _size(views))), *views])
        for peer, buffers in receives.items():
            views = views_of(buffers)
            ins[peer] = (Inbound([memoryview(bytearray(_HEADER.size)), *views]), _size(views))
        peers = outs.keys() | ins.keys()
        with self._use(*peers):
            self._exchange(outs, ins, tag, done)

    def idle(self, wakeup: int, timeout_s: float) -> None:
        """Wait until the descriptor `wakeup` can be read, or a peer has gone (`broken` is set
        then), or the time is over; nothing is read."""
        if self._why is not None:
            return
        poll = select.poll()
        poll.register(wakeup, select.POLLIN)
        fds = {wire.sock.fileno(): peer for peer, wire in self._wires.items()}
        for fd in fds:
            poll.register(fd, select.POLLRDHUP)
        try:
            with self._use(*self.peers, waits=False):
                for fd, event in poll.poll(timeout_s * 1000):
                    if event & _GONE and fd in fds:
                        raise self._lost(fds[fd], "it has closed the connection")
        except PeerLost:
            return  # the caller asks `broken`

    def waiting(self) -> dict[int, float]:
        """The peers that some call waits for, and since when; any thread may ask."""
        found: dict[int, float] = {}
        for (peer, _), since_s in list(self._waiting.items()):
            found[peer] = min(since_s, found.get(peer, since_s))
        return found

    def close(self, why: PeerLost | None = None) -> None:
        """Break it, from any thread: never blocks, and wakes everybody who waits in it at once."""
        with self._lock:
            if self._why is None:
                self._why = why or PeerLost("this worker has closed its connections")
        for wire in self._wires.values():
            wire.shut()

    # --- inside --------------------------------------------------------------------------------

    @contextmanager
    def _use(self, *peers: int, waits: bool = True) -> Iterator[Wire]:
        """Within it the sockets of these peers are not given back to the system."""
        entered = []
        thread, since_s = threading.get_ident(), time.monotonic()
        wire = None
        try:
            for peer in peers:
                wire = self._wires[peer]
                if not wire.enter():
                    raise self._again()
                entered.append(peer)
                if waits:
                    self._waiting[peer, thread] = since_s
            if self._why is not None:
                raise self._again()
            yield wire  # type: ignore[misc]
        except (OSError, EOFError) as error:
            raise self._lost(peers[0], _reason(error)) from error
        finally:
            for peer in entered:
                self._waiting.pop((peer, thread), None)
                self._wires[peer].leave()

    def _exchange(
        self,
        outs: dict[int, Outbound],
        ins: dict[int, tuple[Inbound, int]],
        tag: int,
        done: Callable[[int], None] | None,
    ) -> None:
        poll = select.poll()
        peer_of = {self._wires[peer].sock.fileno(): peer for peer in outs.keys() | ins.keys()}
        ready = dict.fromkeys(peer_of, select.POLLIN | select.POLLOUT)
        for fd, peer in peer_of.items():
            poll.register(fd, _wanted(peer in outs, peer in ins))
        while outs or ins:
            for fd, event in ready.items():
                peer = peer_of[fd]
                try:
                    self._progress(peer, event, outs, ins, tag, done)
                except (OSError, EOFError) as error:
                    raise self._lost(peer, _reason(error)) from error
                if peer in outs or peer in ins:
                    poll.modify(fd, _wanted(peer in outs, peer in ins))
                else:
                    poll.unregister(fd)  # it may hang up now, and that would wake us for ever
            if outs or ins:
                ready = dict(poll.poll())
                if self._why is not None:
                    raise self._again()

    def _progress(
        self,
        peer: int,
        event: int,
        outs: dict[int, Outbound],
        ins: dict[int, tuple[Inbound, int]],
        tag: int,
        done: Callable[[int], None] | None,
    ) -> None:
        sock = self._wires[peer].sock
        if peer in outs and event & ~select.POLLIN:
            with suppress(BlockingIOError):
                if outs[peer].push(sock, socket.MSG_DONTWAIT):
                    del outs[peer]
        if peer in ins and event & ~select.POLLOUT:
            inbound, size = ins[peer]
            with suppress(BlockingIOError):
                ended, again = False, True
                while again:
                    ended = inbound.pull(sock, socket.MSG_DONTWAIT)
                    if inbound.begun:
                        self._check(peer, inbound.head, (tag, size))
                    again = not ended and holds(sock)
                if ended:
                    del ins[peer]
                    if done is not None:
                        done(peer)
        if event & _GONE and peer not in ins and peer in outs:
            raise EOFError("the connection has ended")

    def _check(self, peer: int, head: memoryview | bytes, expected: tuple[int, int]) -> None:
        found = _HEADER.unpack(head)
        if found != expected:
            raise self._confused(peer, found, expected)

    def _confused(self, peer: int, found: tuple[int, int], expected: tuple[int, int]) -> BugError:
        self.close(PeerLost(f"worker {self.worker} did not understand worker {peer}", peer=peer))
        return BugError(
            f"worker {peer} sent message {found[0]} of {found[1]} bytes",
            why=f"worker {self.worker} expected message {expected[0]} of {expected[1]} bytes",
            fix="run all workers of a job with the same code; call run.once, run.evaluate, "
            "run.publish and the like on every worker, not below `if run.first:`",
        )

    def _lost(self, peer: int, why: str) -> PeerLost:
        """The connection to this peer has ended: break everything, say whose fault it was."""
        if self._why is None:
            self.close(PeerLost(f"worker {peer} is not there any more", why=why, peer=peer))
        return self._again()

    def _again(self) -> PeerLost:
        why = self._why or PeerLost("this worker has closed its connections")
        return PeerLost(why.what, why=why.why, peer=why.peer, suspect=why.suspect)

    def _forked(self) -> None:
        """In a forked process: it must not keep the parent's connections open."""
        for wire in self._wires.values():
            with suppress(OSError):
                os.close(wire.sock.detach())


def _size(views: Sequence[memoryview]) -> int:
    return sum(view.nbytes for view in views)


def _wanted(sends: bool, receives: bool) -> int:
    return (select.POLLOUT if sends else 0) | (select.POLLIN if receives else 0)


def _pull_header(sock: Connection) -> bytes:
    head = sock.recv(_HEADER.size, socket.MSG_WAITALL)
    while len(head) < _HEADER.size:
        more = sock.recv(_HEADER.size - len(head), socket.MSG_WAITALL)
        if not more:
            raise EOFError("the connection has ended")
        head += more
    return head


def _pull(sock: Connection, views: list[memoryview]) -> None:
    message = Inbound(views)
    while not message.pull(sock, socket.MSG_WAITALL):
        pass


def _reason(error: BaseException) -> str:
    return str(error) or type(error).__name__


def _close_in_child() -> None:
    for mesh in list(_open):
        mesh._forked()


os.register_at_fork(after_in_child=_close_in_child)


# --- one connection -------------------------------------------------------------------------------


# Buffers in one call of the system; the kernel takes no more than 1,024.
BUFFERS_PER_CALL: Final = 512

_KEEPALIVE_S: Final = max(1, int(PEER_SILENCE_S / 3))


class Wire:
    """A connected socket with a count of who uses it.

    A descriptor that is closed while a call waits in it may be another file's before the call
    returns. So `shut` only ends the traffic, which wakes every call; the last user closes it.
    """

    def __init__(self, sock: Connection) -> None:
        self.sock = sock
        self._lock = threading.Lock()
        self._users = 0
        self._shut = False

    def enter(self) -> bool:
        """Begin to use it; False: it has been shut."""
        with self._lock:
            if self._shut:
                return False
            self._users += 1
            return True

    def leave(self) -> None:
        with self._lock:
            self._users -= 1
            if self._shut and not self._users:
                self.sock.close()

    def shut(self) -> None:
        """End it, from any thread. Never blocks."""
        with self._lock:
            if self._shut:
                return
            self._shut = True
            with suppress(OSError):  # the other side was faster
                self.sock.shutdown(socket.SHUT_RDWR)
            if not self._users:
                self.sock.close()


def tune(sock: Connection) -> Connection:
    """A mesh's connection: it waits, sends at once, and notices when nobody answers."""
    sock.setblocking(True)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEPALIVE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(PEER_SILENCE_S * 1000))
    return sock


def holds(sock: Connection) -> bool:
    """Whether bytes are here already of which no poll knows."""
    return isinstance(sock, TlsSocket) and sock.pending() > 0


def views_of(buffers: Iterable[Any]) -> list[memoryview]:
    """Flat views of whatever has the buffer protocol; empty ones are left out."""
    views = [memoryview(buffer).cast("B") for buffer in buffers]
    return [view for view in views if view.nbytes]


class Outbound:
    """Bytes on their way out."""

    def __init__(self, views: list[memoryview]) -> None:
        self._views = views
        self._at = 0

    def push(self, sock: Connection, flags: int = 0) -> bool:
        """Send as much as one call takes; whether all is sent."""
        if self._at < len(self._views):
            some = self._views[self._at : self._at + BUFFERS_PER_CALL]
            count = sock.sendmsg(some, (), flags | socket.MSG_NOSIGNAL)
            self._at = _advance(self._views, self._at, count)
        return self._at == len(self._views)


class Inbound:
    """Bytes on their way in. The first view is its own (a header): `head` is that view."""

    def __init__(self, views: list[memoryview]) -> None:
        self.head = views[0] if views else memoryview(b"")
        self._views = views
        self._at = 0

    @property
    def begun(self) -> bool:
        """Whether the header is complete."""
        return self._at > 0

    def pull(self, sock: Connection, flags: int = 0) -> bool:
        """Receive as much as one call gives; whether all is here. `EOFError` at the end.

        The header comes by itself: what follows may not be what is expected.
        """
        if self._at < len(self._views):
            end = 1 if self._at == 0 else self._at + BUFFERS_PER_CALL
            count = sock.recvmsg_into(self._views[self._at : end], 0, flags)[0]
            if not count:
                raise EOFError("the connection has ended")
            self._at = _advance(self._views, self._at, count)
        return self._at == len(self._views)


def _advance(views: list[memoryview], at: int, count: int) -> int:
    """The index of the first view that is not through; that one is cut to what is left of it."""
    while count:
        size = views[at].nbytes
        if count < size:
            views[at] = views[at][count:]
            break
        count -= size
        at += 1
    return at


def listening(host: str, port: int) -> socket.socket:
    """A socket on which this worker is called. `Occupied`: a stranger has the port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=512)
    except OSError as error:
        raise Occupied(
            f"this worker cannot listen at {host}:{port}",
            why=str(error),
            fix=f"see who does: ss -ltnp 'sport = :{port}'",
        ) from error
