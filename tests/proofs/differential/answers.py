"""Frames from a server, decoded and normalised so that two servers can be compared."""

from __future__ import annotations

import time
from typing import Any

from holdfast.coordination.embedded import protocol as p
from tests.proofs import wire
from tests.proofs.differential.steps import Call

# How far a server's clock may be from ours; both run on this machine.
CLOCK_TOLERANCE_MS = 5_000

Record = tuple[Any, ...]
_WITH_STAT = {p.CREATE2, p.CREATE_CONTAINER, p.CREATE_TTL}


class Normaliser:
    """One server's names for what differs between servers: session ids and times."""

    def __init__(self) -> None:
        self.sessions: dict[int, str] = {0: "none"}
        self.times: dict[int, int] = {}
        self.began_ms = time.time_ns() // 1_000_000

    def name_session(self, session: int, name: str) -> None:
        self.sessions[session] = name

    def event(self, reply: wire.Reply) -> Record:
        reader = wire.Reader(reply.body)
        kind, state, path = reader.integer(), reader.integer(), reader.string()
        return ("event", reply.zxid, reply.error, kind, state, path, reader.rest)

    def reply(self, call: Call, reply: wire.Reply) -> Record:
        """A reply as values. A body that cannot be decoded stays bytes, and is compared as such."""
        head = ("reply", str(call), reply.xid, reply.zxid, reply.error)
        reader = wire.Reader(reply.body)
        try:
            body = self._body(call.op, reply.error, reader)
        except ValueError:
            return (*head, "undecodable", reply.body)
        return (*head, body, reader.rest)

    def _body(self, op: int, error: int, reader: wire.Reader) -> Any:
        if op in (p.MULTI, p.MULTI_READ) and reader.data:
            return self._multi(reader)
        if error or not reader.data:
            return None
        if op in (p.CREATE, p.SYNC):
            return reader.string()
        if op in _WITH_STAT:
            return reader.string(), self._stat(reader)
        if op in (p.EXISTS, p.SET_DATA, p.SET_ACL):
            return self._stat(reader)
        if op == p.GET_DATA:
            return reader.buffer(), self._stat(reader)
        if op == p.GET_ACL:
            return reader.acl(), self._stat(reader)
        if op in (p.GET_CHILDREN, p.GET_EPHEMERALS):
            return sorted(reader.strings() or [], key=str)
        if op == p.GET_CHILDREN2:
            return sorted(reader.strings() or [], key=str), self._stat(reader)
        if op == p.GET_ALL_CHILDREN_NUMBER:
            return reader.integer()
        if op == p.WHO_AM_I:
            return sorted((reader.string(), reader.string()) for _ in range(reader.integer()))
        return reader.take(len(reader.rest))

    def _multi(self, reader: wire.Reader) -> list[Record]:
        results: list[Record] = []
        while True:
            op, done, error = reader.integer(), reader.boolean(), reader.integer()
            if done:
                return [*results, ("end", op, error)]
            if op == p.ERROR_RESULT:
                results.append(("failed", error, reader.integer()))
                continue
            # A delete and a check answer with nothing; the rest as if they had come alone.
            body = None if op in (p.DELETE, p.CHECK) else self._body(op, 0, reader)
            results.append((op, error, body))

    def _stat(self, reader: wire.Reader) -> Record:
        stat = reader.stat()
        owner = self.sessions.get(stat.ephemeral_owner, f"unknown {stat.ephemeral_owner:#x}")
        times = self._times(stat)
        plain = stat._replace(ephemeral_owner=0, ctime=0, mtime=0)._asdict()
        del plain["ctime"], plain["mtime"], plain["ephemeral_owner"]
        return (tuple(plain.items()), owner, times)

    def _times(self, stat: wire.Stat) -> str:
        """ "sane", or what is wrong: a transaction has one time, and it is about now."""
        now_ms = time.time_ns() // 1_000_000
        for zxid, time_ms in ((stat.czxid, stat.ctime), (stat.mzxid, stat.mtime)):
            if self.times.setdefault(zxid, time_ms) != time_ms:
                return f"zxid {zxid} has two times, {self.times[zxid]} and {time_ms}"
            if zxid == 0:
                if time_ms != 0:
                    return f"a node from before all time has time {time_ms}"
            elif not self.began_ms - CLOCK_TOLERANCE_MS < time_ms < now_ms + CLOCK_TOLERANCE_MS:
                return f"time {time_ms} is far from {now_ms}"
        return "sane"
