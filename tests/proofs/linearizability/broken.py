"""A proxy before a server that breaks its promises on purpose.

It passes frames on in both directions. A breakage sees each request and each reply of the
registers and may change it. With `Honest` it changes nothing.
"""

from __future__ import annotations

import random
import socket
import struct
import threading
import time
from typing import NamedTuple, Self

from holdfast.coordination.embedded import protocol as p
from tests.proofs import wire

LOST_PATH = "/registers"
DELAY_S = 0.03


class Seen(NamedTuple):
    """A request that waits for its reply."""

    op: int
    path: str


class Honest:
    """Passes everything on as it is. The base of those who do not."""

    rate = 0.03

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.lock = threading.Lock()
        self.struck = 0

    def strikes(self) -> bool:
        with self.lock:
            if self.random.random() >= self.rate:
                return False
            self.struck += 1
            return True

    def request(self, seen: Seen, payload: bytes) -> bytes:
        """What the server gets of a client's request."""
        return payload

    def reply(self, seen: Seen, reply: wire.Reply) -> wire.Reply:
        """What the client gets of the server's reply."""
        return reply


class StaleReads(Honest):
    """Some reads are answered from a memory of the past, under the current zxid."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.memory: dict[str, bytes] = {}

    def reply(self, seen: Seen, reply: wire.Reply) -> wire.Reply:
        if seen.op != p.GET_DATA or reply.error:
            return reply
        old = self.memory.setdefault(seen.path, reply.body)
        if self.strikes():
            return reply._replace(body=old)
        if self.random.random() < 0.1:
            self.memory[seen.path] = reply.body
        return reply


class OldSnapshotReads(Honest):
    """Some reads come from a consistent past: the old value under the old zxid."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.past: dict[str, wire.Reply] = {}

    def reply(self, seen: Seen, reply: wire.Reply) -> wire.Reply:
        if seen.op != p.GET_DATA or reply.error:
            return reply
        old = self.past.setdefault(seen.path, reply)
        if self.strikes():
            return old._replace(xid=reply.xid)
        if self.random.random() < 0.1:
            self.past[seen.path] = reply
        return reply


class LostUpdates(Honest):
    """Some writes go to another node, and are acknowledged as if they had reached theirs."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.versions: dict[str, int] = {}

    def request(self, seen: Seen, payload: bytes) -> bytes:
        if seen.op != p.SET_DATA or seen.path not in self.versions or not self.strikes():
            return payload
        reader = wire.Reader(payload)
        head = reader.take(8)
        reader.string()
        return head + wire.set_data_body(LOST_PATH, reader.buffer(), -1)

    def reply(self, seen: Seen, reply: wire.Reply) -> wire.Reply:
        if seen.op not in (p.SET_DATA, p.GET_DATA) or reply.error:
            return reply
        reader = wire.Reader(reply.body)
        if seen.op == p.GET_DATA:
            reader.buffer()
        stat = reader.stat()
        if stat.num_children:  # only the parent of the registers has children
            version = self.versions[seen.path] + 1
            stat = stat._replace(version=version, num_children=0, cversion=0)
            return reply._replace(body=wire.STAT.pack(*stat))
        self.versions[seen.path] = stat.version
        return reply


class BlindWrites(Honest):
    """Some compare-and-sets are done without the comparison."""

    rate = 0.2

    def request(self, seen: Seen, payload: bytes) -> bytes:
        if seen.op != p.SET_DATA or not self.strikes():
            return payload
        return payload[:-4] + wire.integer(-1)


class LateReplies(Honest):
    """Some reads are carried out long before they are answered, and renumbered to look fresh.

    The reply waits until other clients have written, and then claims to come after them.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.last_zxid = 0

    def reply(self, seen: Seen, reply: wire.Reply) -> wire.Reply:
        self.last_zxid = max(self.last_zxid, reply.zxid)
        if seen.op != p.GET_DATA or reply.error or not self.strikes():
            return reply
        time.sleep(DELAY_S)  # pause: the fault
        return reply._replace(zxid=self.last_zxid)


BREAKAGES: dict[str, type[Honest]] = {
    "stale-reads": StaleReads,
    "old-snapshot-reads": OldSnapshotReads,
    "lost-updates": LostUpdates,
    "blind-writes": BlindWrites,
    "late-replies": LateReplies,
}


class Proxy:
    """Listens on a port of its own and breaks what goes through, as its breakage wants."""

    def __init__(self, server_port: int, breakage: Honest) -> None:
        self.server_port = server_port
        self.breakage = breakage
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self.listener.getsockname()[1])
        self.sockets: list[socket.socket] = [self.listener]
        self.threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(self, *exc: object) -> None:
        for end in self.sockets:
            _end(end)
        for thread in self.threads:
            thread.join(timeout=10)

    def _start(self, target: object, *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)  # type: ignore[arg-type]
        self.threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return  # closed: the proxy is over
            try:
                server = socket.create_connection(("127.0.0.1", self.server_port))
            except OSError:
                _end(client)
                continue
            self.sockets += [client, server]
            waiting: dict[int, Seen] = {}
            self._start(self._requests, client, server, waiting)
            self._start(self._replies, server, client, waiting)

    def _requests(
        self, client: socket.socket, server: socket.socket, waiting: dict[int, Seen]
    ) -> None:
        first = True
        try:
            while (payload := _receive(client)) is not None:
                if not first:
                    xid, op = struct.unpack_from("!ii", payload)
                    if op in (p.GET_DATA, p.SET_DATA):
                        seen = Seen(op, wire.Reader(payload[8:]).string() or "")
                        waiting[xid] = seen
                        payload = self.breakage.request(seen, payload)
                first = False
                server.sendall(wire.frame(payload))
        except OSError:
            pass  # either end is gone: so is the other, below
        finally:
            _end(client)
            _end(server)

    def _replies(
        self, server: socket.socket, client: socket.socket, waiting: dict[int, Seen]
    ) -> None:
        first = True
        try:
            while (payload := _receive(server)) is not None:
                if not first:
                    reader = wire.Reader(payload)
                    reply = wire.Reply(
                        reader.integer(), reader.long(), reader.integer(), reader.rest
                    )
                    seen = waiting.pop(reply.xid, None)
                    if seen is not None:
                        reply = self.breakage.reply(seen, reply)
                    head = struct.pack("!iqi", reply.xid, reply.zxid, reply.error)
                    payload = head + reply.body
                first = False
                client.sendall(wire.frame(payload))
        except OSError:
            pass  # either end is gone: so is the other, below
        finally:
            _end(client)
            _end(server)


def _receive(end: socket.socket) -> bytes | None:
    header = _exactly(end, 4)
    return None if header is None else _exactly(end, int.from_bytes(header, "big"))


def _exactly(end: socket.socket, count: int) -> bytes | None:
    data = b""
    while len(data) < count:
        chunk = end.recv(count - len(data))
        if not chunk:
            return None
        data += chunk
    return data


def _end(end: socket.socket) -> None:
    """Close a socket so that a thread that reads from it wakes."""
    try:
        end.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # it was never connected, or is closed already
    finally:
        end.close()
