"""Requests: valid ones, mutations of them, and some that are wrong on purpose.

A request here is a frame's payload without its length: xid, operation, body.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

from holdfast.coordination.embedded import protocol
from tests.proofs import wire

SESSION_TIMEOUT_MS = 4_000
ODD_INTEGERS = (0, 1, -1, -2, 0x7FFFFFFF, -0x80000000, 0xFFFFE, 0xFFFFF, 0x100000, 0x10000, 255)
ODD_PATHS: tuple[bytes, ...] = (
    b"",
    b"/",
    b"//",
    b"/fuzz/",
    b"/fuzz/.",
    b"/fuzz/../zookeeper",
    b"fuzz",
    b"/fuzz/\x00",
    b"/fuzz/\xff\xfe",
    b"/fuzz/\xed\xa0\x80",
    b"/fuzz/\xf0\x9f\x98\x80",
    b"/fuzz/\x01\x1f\x7f",
    b"/fuzz" + b"/d" * 2_000,
    b"/fuzz/" + b"n" * 20_000,
    b"/zookeeper",
    b"/zookeeper/quota",
    b"/control/node-0",
)


def handshake() -> bytes:
    """A valid connect request for a new, short session."""
    body = wire.integer(0) + wire.long(0) + wire.integer(SESSION_TIMEOUT_MS) + wire.long(0)
    return body + wire.buffer(wire.NO_PASSWORD) + wire.boolean(False)


def _path(draw: random.Random) -> str:
    return draw.choice(("/fuzz", "/fuzz", "/fuzz/deep")) + f"/n{draw.randrange(30)}"


def _create(draw: random.Random) -> bytes:
    return wire.create_body(_path(draw), draw.randbytes(draw.randrange(40)), draw.randrange(4))


def _parts(draw: random.Random) -> bytes:
    choices = (
        (protocol.CREATE, _create),
        (protocol.DELETE, lambda d: wire.versioned_body(_path(d))),
        (protocol.SET_DATA, lambda d: wire.set_data_body(_path(d), b"x")),
        (protocol.CHECK, lambda d: wire.versioned_body(_path(d), 0)),
    )
    picked = draw.choices(choices, k=draw.randrange(5))
    return wire.multi_body([(opcode, make(draw)) for opcode, make in picked])


def _watches(draw: random.Random, tables: int) -> bytes:
    lists = [wire.vector([wire.string(_path(draw))] * draw.randrange(4)) for _ in range(tables)]
    return wire.long(draw.randrange(1_000)) + b"".join(lists)


VALID: dict[int, Callable[[random.Random], bytes]] = {
    protocol.CREATE: _create,
    protocol.CREATE2: _create,
    protocol.CREATE_CONTAINER: lambda d: wire.create_body(_path(d), b"", 4),
    protocol.CREATE_TTL: lambda d: wire.create_body(_path(d), b"", 5, ttl_ms=5_000),
    protocol.DELETE: lambda d: wire.versioned_body(_path(d)),
    protocol.SET_DATA: lambda d: wire.set_data_body(_path(d), d.randbytes(20)),
    protocol.SET_ACL: lambda d: wire.set_acl_body(_path(d), wire.OPEN_ACL),
    protocol.EXISTS: lambda d: wire.read_body(_path(d), True),
    protocol.GET_DATA: lambda d: wire.read_body(_path(d), True),
    protocol.GET_ACL: lambda d: wire.string(_path(d)),
    protocol.GET_CHILDREN: lambda d: wire.read_body("/fuzz", True),
    protocol.GET_CHILDREN2: lambda d: wire.read_body("/fuzz", True),
    protocol.SYNC: lambda d: wire.string(_path(d)),
    protocol.PING: lambda d: b"",
    protocol.MULTI: _parts,
    protocol.MULTI_READ: lambda d: wire.multi_body(
        [(protocol.GET_DATA, wire.read_body(_path(d)))] * d.randrange(4)
    ),
    protocol.AUTH: lambda d: wire.auth_body("digest", b"somebody:secret"),
    protocol.SET_WATCHES: lambda d: _watches(d, 3),
    protocol.SET_WATCHES2: lambda d: _watches(d, 5),
    protocol.ADD_WATCH: lambda d: wire.string(_path(d)) + wire.integer(d.randrange(2)),
    protocol.REMOVE_WATCHES: lambda d: wire.string(_path(d)) + wire.integer(3),
    protocol.CHECK_WATCHES: lambda d: wire.string(_path(d)) + wire.integer(3),
    protocol.GET_EPHEMERALS: lambda d: wire.string("/fuzz"),
    protocol.GET_ALL_CHILDREN_NUMBER: lambda d: wire.string("/"),
    protocol.WHO_AM_I: lambda d: b"",
    protocol.RECONFIG: lambda d: wire.string("a") * 3 + wire.long(-1),
    protocol.SASL: lambda d: wire.buffer(d.randbytes(30)),
}


def valid(draw: random.Random, xid: int) -> bytes:
    opcode = draw.choice(tuple(VALID))
    return wire.integer(xid) + wire.integer(opcode) + VALID[opcode](draw)


def mutated(draw: random.Random, payload: bytes) -> bytes:
    """One to three small wrongs in an otherwise valid payload."""
    data = bytearray(payload)
    for _ in range(draw.randint(1, 3)):
        if not data:
            break
        at = draw.randrange(len(data))
        way = draw.randrange(6)
        if way == 0:
            data[at] ^= 1 << draw.randrange(8)
        elif way == 1:
            data[at : at + 4] = struct.pack("!i", draw.choice(ODD_INTEGERS))
        elif way == 2:
            del data[at:]
        elif way == 3:
            data[at:at] = draw.randbytes(draw.randint(1, 40))
        elif way == 4:
            data[at:at] = data[at : at + draw.randint(1, 40)]
        else:
            data[at] = draw.choice((0x00, 0xFF, 0xC0, 0x80, 0x2F))
    return bytes(data)


def framed_wrong(draw: random.Random, payload: bytes) -> bytes:
    """A frame whose length is a lie."""
    lie = draw.choice((*ODD_INTEGERS, len(payload) - 1, len(payload) + 1, len(payload) * 2))
    return wire.integer(lie) + payload


def _bad_multi(draw: random.Random) -> bytes:
    inner = wire.multi_body([(protocol.CREATE, _create(draw))])
    ways = (
        wire.multi_body([(protocol.MULTI, inner)]),
        wire.multi_body([(protocol.MULTI, wire.multi_body([(protocol.MULTI, inner)]))]),
        inner[:-9],  # no end marker
        wire.multi_body([]) + inner,
        wire.multi_body([(protocol.CHECK, wire.versioned_body("/fuzz"))] * 2_000),
        wire.multi_body([(protocol.ERROR_RESULT, wire.integer(-1))]),
        wire.multi_body([(protocol.CREATE_SESSION, wire.integer(1))]),
        wire.multi_body([(protocol.GET_DATA, wire.read_body("/fuzz"))]),
        b"\xff" * draw.randrange(200),
    )
    return draw.choice(ways)


def wrong(draw: random.Random, xid: int) -> bytes:
    """A well-framed request that no good client would send."""
    path = draw.choice(ODD_PATHS)
    odd = draw.choice(ODD_INTEGERS)
    count = wire.integer(odd)
    ways: tuple[tuple[int, bytes], ...] = (
        (protocol.CREATE, wire.create_body(path, b"x", odd)),
        (protocol.CREATE, wire.string(b"/fuzz/x") + wire.buffer(b"") + count + wire.integer(0)),
        (protocol.CREATE, wire.string(b"/fuzz/x") + count + b"abc"),
        (protocol.CREATE, wire.create_body(b"/fuzz/x", None, 0, ((odd, "sasl", "\0"),))),
        (protocol.CREATE_TTL, wire.create_body(b"/fuzz/t", b"", 5, ttl_ms=odd)),
        (protocol.CREATE_CONTAINER, wire.create_body(path, b"", odd)),
        (protocol.DELETE, wire.versioned_body(path, odd)),
        (protocol.SET_DATA, wire.set_data_body(path, None, odd)),
        (protocol.SET_DATA, count + b"/fuzz"),
        (protocol.SET_ACL, wire.set_acl_body(path, None, odd)),
        (protocol.SET_ACL, wire.set_acl_body(b"/fuzz/n1", ((31, "ip", "1.2.3/99"),))),
        (protocol.GET_DATA, wire.read_body(path, True)),
        (protocol.GET_CHILDREN2, wire.read_body(path, True)),
        (protocol.EXISTS, wire.string(path) + b"\x7f"),
        (protocol.GET_ACL, wire.string(path)),
        (protocol.SYNC, count),
        (protocol.MULTI, _bad_multi(draw)),
        (protocol.MULTI_READ, _bad_multi(draw)),
        (protocol.AUTH, wire.integer(odd) + wire.string(path[:90]) + wire.buffer(b"\xff:\xfe")),
        (protocol.SET_WATCHES, wire.long(odd) + count + count + count),
        (protocol.SET_WATCHES2, wire.long(-1) + wire.vector([wire.string(path)]) * 5),
        (protocol.ADD_WATCH, wire.string(path) + count),
        (protocol.REMOVE_WATCHES, wire.string(path) + count),
        (protocol.CHECK_WATCHES, wire.string(path) + count),
        (protocol.GET_EPHEMERALS, wire.string(path)),
        (protocol.GET_ALL_CHILDREN_NUMBER, wire.string(path)),
        (protocol.DELETE_CONTAINER, wire.string(path)),
        (protocol.CREATE_SESSION, count),
        (protocol.ERROR_RESULT, count),
        (protocol.CHECK, wire.versioned_body(path, odd)),
        (draw.randrange(-20, 120), draw.randbytes(draw.randrange(60))),
        (draw.randrange(-(2**31), 2**31), draw.randbytes(draw.randrange(60))),
    )
    opcode, body = draw.choice(ways)
    xid = draw.choice((xid, xid, xid, -1, -2, -4, -8, -0x80000000))
    return wire.integer(xid) + wire.integer(opcode) + body
