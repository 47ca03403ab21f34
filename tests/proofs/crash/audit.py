"""What all writers share, and what must be true of it after every restart."""

from __future__ import annotations

import random
import re
import threading
from typing import NamedTuple

from holdfast.coordination.embedded import protocol
from tests.proofs import wire
from tests.proofs.crash.model import LEFT, LINE, RIGHT, Violation
from tests.servers.process import four_letter_word

ABANDONED = "/shared/abandoned"
ABANDONED_TIMEOUT_MS = 4_000


class Finding(NamedTuple):
    """What the auditor saw: which numbers of which writer stand in the line, and the pair."""

    line: dict[str, frozenset[int]]
    pair: bytes  # what the shared pair holds: "WRITER:NUMBER"
    zxid: int

    def shared(self, name: str) -> frozenset[int]:
        return self.line.get(name, frozenset())

    def witnessed(self, name: str) -> int:
        """The request of this writer that the pair proves to have happened, or 0."""
        who, _, number = self.pair.decode().partition(":")
        return int(number) if who == name else 0


class Auditor:
    """Remembers whatever anybody was ever told, and holds the server to it."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.highest_zxid = 0
        self.acknowledged = 0
        self.abandoned: list[str] = []
        self._lock = threading.Lock()
        self._writes: dict[int, str] = {}  # zxid to who was told that it is theirs
        self._numbers: dict[int, str] = {}  # sequence number to the name that has it
        self._line: list[tuple[int, int]] = []  # (zxid, number) of acknowledged creates
        self._pairs: dict[int, bytes] = {}
        self._open_pairs: set[bytes] = set()

    # --- what writers tell ---------------------------------------------------------------------

    def saw(self, zxid: int) -> None:
        """A reply carried this zxid: the server must never again be behind it."""
        with self._lock:
            self.highest_zxid = max(self.highest_zxid, zxid)

    def wrote(self, zxid: int, who: str) -> None:
        """A write was acknowledged with this zxid: nobody else may have the same."""
        with self._lock:
            other = self._writes.setdefault(zxid, who)
            self.acknowledged += 1
        if other != who:
            raise Violation(f"zxid {zxid:#x} was given to {other} and to {who}")

    def joined(self, zxid: int, name: str) -> None:
        """A sequential create was acknowledged."""
        self._number(name)
        with self._lock:
            self._line.append((zxid, int(name[-10:])))

    def pair_asked(self, token: bytes) -> None:
        with self._lock:
            self._open_pairs.add(token)

    def pair_set(self, zxid: int, token: bytes) -> None:
        with self._lock:
            self._open_pairs.discard(token)
            self._pairs[zxid] = token

    def _number(self, name: str) -> None:
        with self._lock:
            holder = self._numbers.setdefault(int(name[-10:]), name)
        if holder != name:
            raise Violation(f"the sequence number of {name} was used before: {holder}")

    # --- what is checked -----------------------------------------------------------------------

    def set_up(self, port: int) -> None:
        with wire.Link(port) as link:
            link.connect()
            for path in ("/shared", LEFT, RIGHT, LINE, ABANDONED):
                reply = link.call(1, protocol.CREATE, wire.create_body(path))
                if reply is None or reply.error:
                    raise Violation(f"{path} could not be made: {reply}")
                self.saw(reply.zxid)
            link.call(2, protocol.CLOSE_SESSION)

    def audit(self, port: int) -> Finding:
        """Look at a restarted server with fresh eyes."""
        found = re.search(r"^Zxid: 0x([0-9a-f]+)$", four_letter_word(port, "srvr"), re.MULTILINE)
        if found is None or int(found[1], 16) < self.highest_zxid:
            raise Violation(
                f"the server is at {found and found[0]} and had told {self.highest_zxid:#x}"
            )
        with wire.Link(port) as link:
            # Without the last zxid that was seen: the server must be right by itself.
            if link.connect() is None:
                raise Violation("the server refused a new session")
            finding = self._look(link)
            self.saw(finding.zxid)
            link.call(9, protocol.CLOSE_SESSION)
        if self.draw.random() < 0.1:
            self._abandon(port)
        return finding

    def _look(self, link: wire.Link) -> Finding:
        left = self._read(link, LEFT)
        right = self._read(link, RIGHT)
        self._check_pair(left, right)
        listing = link.call(3, protocol.GET_CHILDREN, wire.read_body(LINE))
        if listing is None or listing.error:
            raise Violation(f"the shared line cannot be read: {listing}")
        line: dict[str, set[int]] = {}
        for name in wire.Reader(listing.body).strings() or ():
            assert name is not None
            self._number(name)
            who, number, _ = name.split("-")
            line.setdefault(who, set()).add(int(number))
        self._check_line()
        shared = {who: frozenset(some) for who, some in line.items()}
        return Finding(shared, left[0], listing.zxid)

    @staticmethod
    def _read(link: wire.Link, path: str) -> tuple[bytes, int]:
        reply = link.call(2, protocol.GET_DATA, wire.read_body(path))
        if reply is None or reply.error:
            raise Violation(f"{path} cannot be read: {reply}")
        reader = wire.Reader(reply.body)
        return reader.buffer() or b"", reader.stat().mzxid

    def _check_pair(self, left: tuple[bytes, int], right: tuple[bytes, int]) -> None:
        token, zxid = left
        if token != right[0] or (token and zxid != right[1]):
            raise Violation(f"a multi was done by half: {LEFT} is {left}, {RIGHT} is {right}")
        last = max(self._pairs, default=0)
        if zxid < last:
            raise Violation(
                f"the pair is that of {zxid:#x}, {token!r}; {last:#x} had been acknowledged"
            )
        known = self._pairs.get(zxid)
        if (known is not None and known != token) or (
            known is None and token and token not in self._open_pairs
        ):
            raise Violation(f"the pair holds {token!r} of {zxid:#x}; {known!r} was asked for then")
        if known is None and token:
            self.pair_set(zxid, token)

    def _check_line(self) -> None:
        self._line.sort()
        numbers = [number for _, number in self._line]
        if numbers != sorted(set(numbers)):
            raise Violation("sequence numbers do not grow in the order of their zxids")
        del self._line[:-1]

    def _abandon(self, port: int) -> None:
        """A session with an ephemeral node whose client is never heard of again."""
        path = f"{ABANDONED}/{len(self.abandoned)}"
        with wire.Link(port) as link:
            if link.connect(timeout_ms=ABANDONED_TIMEOUT_MS) is None:
                return
            body = wire.create_body(path, b"", protocol.FLAG_EPHEMERAL)
            reply = link.call(1, protocol.CREATE, body)
            if reply is not None and not reply.error:
                self.abandoned.append(path)

    def ephemerals_of_the_abandoned(self, port: int) -> list[str]:
        """Those that are still there."""
        with wire.Link(port) as link:
            link.connect()
            reply = link.call(1, protocol.GET_CHILDREN, wire.read_body(ABANDONED))
            link.call(2, protocol.CLOSE_SESSION)
        if reply is None or reply.error:
            raise Violation(f"{ABANDONED} cannot be read: {reply}")
        return [name for name in wire.Reader(reply.body).strings() or () if name]
