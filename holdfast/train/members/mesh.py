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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

from holdfast.train.members.tls import Connection
from holdfast.train.members.wires import Inbound, Outbound, Wire, holds, views_of
from holdfast.wire.errors import BugError, PeerLost

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

    def idle(self, bell: int, timeout_s: float) -> None:
        """Wait until the descriptor `bell` can be read, or a peer has gone (`broken` is set then),
        or the time is over; nothing is read."""
        if self._why is not None:
            return
        poll = select.poll()
        poll.register(bell, select.POLLIN)
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
