"""A TCP proxy that makes one server look as a server of an ensemble may look at its worst moment.

- It is *behind*: each new connection is answered from what was read before, until it has caught up
  (`sync`, or anything that is voted upon).
- A write is *stranded*: its sender's connection is gone, and it is still on its way over that.
- A write is *in flight*: its sender's connection is gone, a sync and a read over the next one are
  answered without it, and it is done just before what is voted upon next. So it looks over the own
  server of a leader that was replaced and does not know it yet, but for the wait for another one.

Nothing here depends on time.
"""

from __future__ import annotations

import socket
import struct
import threading
from typing import NamedTuple, Self

from holdfast.coordination.embedded import protocol
from tests.contract import framed
from tests.contract.cutting import WRITES

_NOBODYS_XID = 1_999_999_999
_HEAD = struct.Struct("!ii")


class Seen(NamedTuple):
    """A request that was passed on: over the how manieth connection, of which kind, the rest."""

    link: int
    kind: int
    body: bytes


class LaggingProxy:
    """In front of the server at `port`. Passes everything on until it is told otherwise."""

    def __init__(self, port: int) -> None:
        self.upstream = port
        self._closed = False
        self.lock = threading.RLock()
        self.links: list[_Link] = []
        self.opened = 0  # connections whose client has been told that they are open
        self.seen: list[Seen] = []
        self.memory: dict[tuple[int, bytes], bytes] = {}
        self.behind_from: int | None = None
        self.loses: tuple[int, bytes] | None = None
        self.delays: int | None = None
        self.in_flight: bytes | None = None
        self.past_votes = False
        self.strands: int | None = None
        self.stranded: tuple[socket.socket, bytes] | None = None
        self.refused_or_done = threading.Event()
        self.light = threading.Event()
        self.light.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def fall_behind(self) -> None:
        """Every connection from now on begins with what was read over the earlier ones."""
        with self.lock:
            self.behind_from = len(self.links)

    def lose_the_next(self, kind: int, holding: bytes) -> None:
        """Cut the connection instead of passing on the answer to such a request with these bytes,
        and welcome no other one until `light` is set."""
        with self.lock:
            self.loses = (kind, holding)
            self.light.clear()

    def keep_in_flight(self, kind: int, *, past_votes: bool = False) -> None:
        """The next such write is in flight, its sender's connection cut. It is done just before
        the next write that comes. `past_votes`: before the next that changes something, so that a
        vote does not decide it; no server is that bad."""
        with self.lock:
            self.delays, self.past_votes = kind, past_votes

    def strand_the_next(self, kind: int) -> None:
        """The next such write gets no further than here, and its sender's connection is cut."""
        with self.lock:
            self.strands = kind

    def deliver_the_stranded(self) -> None:
        """Let it go on, over its own connection; returns when the server has dealt with it."""
        with self.lock:
            assert self.stranded is not None
            server, frame = self.stranded
        if framed.send(server, frame):
            assert self.refused_or_done.wait(60)

    def kinds(self, link: int | None = None) -> list[int]:
        """What was passed on, over this connection or over all of them."""
        with self.lock:
            return [one.kind for one in self.seen if link in (None, one.link)]

    def cut(self) -> None:
        """End all connections."""
        with self.lock:
            links = tuple(self.links)
        for link in links:
            link.end()

    def close(self) -> None:
        self._closed = True
        self.light.set()
        self._listener.close()
        self.cut()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
                self.light.wait()
                server = socket.create_connection(("127.0.0.1", self.upstream), timeout=60)
            except OSError:
                continue
            server.settimeout(None)
            with self.lock:
                link = _Link(self, len(self.links), client, server)
                self.links.append(link)
            link.start()


class _Link:
    """One connection: frames of both directions, each on a thread."""

    def __init__(
        self, proxy: LaggingProxy, number: int, client: socket.socket, server: socket.socket
    ) -> None:
        self._proxy = proxy
        self._number = number
        self._client = client
        self._server = server
        self._asked: dict[int, tuple[int, bytes]] = {}
        self._stale: dict[int, bytes] = {}
        self._doomed: set[int] = set()
        self._is_stranded = False
        self._behind = proxy.behind_from is not None and number >= proxy.behind_from

    def start(self) -> None:
        threading.Thread(target=self._requests, daemon=True).start()
        threading.Thread(target=self._replies, daemon=True).start()

    def end(self) -> None:
        framed.end(self._client)
        framed.end(self._server)

    def _requests(self) -> None:
        introduced = False
        while (frame := framed.read(self._client)) is not None:
            if introduced:
                with self._proxy.lock:
                    if not self._pass(frame):
                        break
            elif not framed.send(self._server, frame):
                break
            introduced = True
        if self._is_stranded:
            framed.end(self._client)
        else:
            self.end()

    def _pass(self, frame: bytes) -> bool:
        """Pass a request on; False if this connection is over."""
        proxy = self._proxy
        xid, kind = _HEAD.unpack_from(frame, 4)
        body = frame[12:]
        if kind == proxy.delays and not is_vote(kind, body):
            proxy.delays = None
            proxy.in_flight = frame[:4] + struct.pack("!i", _NOBODYS_XID) + frame[8:]
            return False
        if kind == proxy.strands and not is_vote(kind, body):
            proxy.strands, proxy.stranded, self._is_stranded = None, (self._server, frame), True
            return False
        late = proxy.in_flight
        if late is not None and kind in WRITES and not (proxy.past_votes and is_vote(kind, body)):
            proxy.in_flight = None
            framed.send(self._server, late)
        if kind in WRITES or (kind == protocol.SYNC and body != _packed("/")):
            self._behind = False
        if proxy.loses is not None and proxy.loses[0] == kind and proxy.loses[1] in body:
            proxy.loses = None
            self._doomed.add(xid)
        self._asked[xid] = (kind, body)
        if self._behind and (kind, body) in proxy.memory:
            self._stale[xid] = proxy.memory[kind, body]
        proxy.seen.append(Seen(self._number, kind, body))
        return framed.send(self._server, frame)

    def _replies(self) -> None:
        introduced = False
        while (frame := framed.read(self._server)) is not None:
            passed: bytes | None = frame
            if introduced:
                with self._proxy.lock:
                    xid = struct.unpack_from("!i", frame, 4)[0]
                    if xid in self._doomed:
                        break
                    passed = self._answer(xid, frame)
            if self._is_stranded:
                continue
            if passed is not None and not framed.send(self._client, passed):
                break
            if not introduced:
                with self._proxy.lock:
                    self._proxy.opened += 1
            introduced = True
        if self._is_stranded:
            self._proxy.refused_or_done.set()
        self.end()

    def _answer(self, xid: int, frame: bytes) -> bytes | None:
        """What the client is told; None: nothing."""
        if self._proxy.stranded is not None and frame[4:8] == self._proxy.stranded[1][4:8]:
            self._proxy.refused_or_done.set()
        if xid == _NOBODYS_XID:
            return None
        if xid in self._stale:
            rest = self._stale.pop(xid)
            return struct.pack("!ii", 4 + len(rest), xid) + rest
        asked = self._asked.pop(xid, None)
        if asked is not None and asked[0] in (protocol.GET_DATA, protocol.GET_CHILDREN):
            self._proxy.memory[asked] = frame[8:]
        return frame


def part(kind: int) -> bytes:
    """How a part of this kind begins inside a multi."""
    return struct.pack("!i?i", kind, False, -1)


def is_vote(kind: int, body: bytes) -> bool:
    """Whether this is a multi of one check and nothing else."""
    if kind != protocol.MULTI or not body.startswith(part(protocol.CHECK)):
        return False
    path_bytes: int = struct.unpack_from("!i", body, 9)[0]
    return len(body) == 9 + 4 + path_bytes + 4 + 9


def _packed(path: str) -> bytes:
    return struct.pack("!i", len(path)) + path.encode()
