"""A seeded source of steps. Few names, so that operations meet each other often."""

from __future__ import annotations

import base64
import hashlib
import random
from collections.abc import Callable

from holdfast.coordination.embedded import protocol as p
from tests.proofs import wire
from tests.proofs.differential import steps as s
from tests.proofs.differential.paths import Paths

USERS = ("ann:a", "bob:b", "cy:c")
DIGESTS = tuple(
    f"{user.split(':')[0]}:{base64.b64encode(hashlib.sha1(user.encode()).digest()).decode()}"
    for user in USERS
)
ACLS: tuple[tuple[wire.AclEntry, ...] | None, ...] = (
    wire.OPEN_ACL,
    ((31, "auth", ""),),
    ((1, "world", "anyone"), (31, "auth", "")),
    ((31, "digest", DIGESTS[0]),),
    ((1, "world", "anyone"), (6, "digest", DIGESTS[1]), (1, "world", "anyone")),
    ((31, "ip", "127.0.0.1"),),
    ((31, "ip", "127.0.0.0/8"), (1, "world", "anyone")),
    ((31, "ip", "10.0.0.1"),),
    ((15, "world", "anyone"),),
    ((0, "world", "anyone"),),
    ((30, "world", "anyone"),),
)
BAD_ACLS: tuple[tuple[wire.AclEntry, ...] | None, ...] = (
    None,
    (),
    ((31, "world", "nobody"),),
    ((31, "nonsense", "x"),),
    ((31, "digest", "no-colon"),),
    ((31, "digest", "a:b:c"),),
    ((31, "ip", "999.0.0.1"),),
    ((31, "ip", "127.0.0.1/99"),),
    ((31, "ip", "words"),),
    ((31, "", ""),),
    ((64, "world", "anyone"),),
    ((-1, "world", "anyone"),),
)
VALUES = (b"", b"1", b"two", b"\x00\xff" * 8, None, b"x" * 3_000)
UNKNOWN_OPERATIONS = (-7, 0, 10, 23, 99, 108, 999)
EPOCH_STEPS = 300


class Generator:
    """`next()` makes a step; `observe` tells it what came of it."""

    def __init__(self, seed: int, clients: int, without: frozenset[str] = frozenset()) -> None:
        self.random = random.Random(seed)
        self.without = without
        self.clients = clients
        self.paths = Paths(self.random)
        self.open: set[int] = set()
        self.session: set[int] = set()
        self.taken = 0
        self.next_epoch = 0
        self.last_zxid = 0
        self.makers: list[tuple[int, Callable[[], s.Call]]] = [
            (22, self._create),
            (12, self._delete),
            (10, self._set_data),
            (10, self._read),
            (4, self._acl_read_or_write),
            (2, self._failing_check),
            (8, self._multi),
            (3, self._multi_read),
            (5, self._add_watch),
            (3, self._watch_query),
            (3, self._set_watches),
            (4, self._small),
        ]
        self.weights = [weight for weight, _ in self.makers]

    def next(self) -> s.Step:
        self.taken += 1
        if self.taken >= self.next_epoch and self.open:
            self.next_epoch = self.taken + EPOCH_STEPS
            base = self.paths.new_epoch()
            call = s.Call(p.CREATE, wire.create_body(base), f"{base!r}, a new base")
            return s.Talk(min(self.open), (call,))
        client = self.random.randrange(self.clients)
        if client not in self.session:
            return self._arrive(client)
        if client not in self.open:
            return self._come_back(client)
        dice = self.random.random()
        if dice < 0.012:
            return s.Drop(client)
        if dice < 0.022:
            # With the right password: ZooKeeper lets a wrong one break a living connection.
            return s.Resume(client, True, 0)
        if dice < 0.032:
            return s.Talk(client, (s.Call(p.CLOSE_SESSION, b"", ""),))
        if dice < 0.04:
            return s.Visit(self.random.choice([-5, 0, 1, 4_001, 50_000, 2**31 - 1]), self._flag())
        if dice < 0.055 and "auth" not in self.without:
            return s.Talk(client, (self._auth(),))
        if dice < 0.06:
            op = self.random.choice(UNKNOWN_OPERATIONS)
            return s.Talk(client, (s.Call(op, self.random.choice([b"", b"\0" * 20]), "unknown"),))
        count = self.random.randint(2, 8) if dice > 0.9 else 1
        calls = [self.call() for _ in range(count)]
        if count > 1:
            # ZooKeeper checks a write against the rights from before a setACL that is under way.
            calls = [call for call in calls if call.op != p.SET_ACL] or [self._create()]
        return s.Talk(client, tuple(calls))

    def observe(
        self, step: s.Step, replies: list[tuple[s.Call, wire.Reply]], links: set[int]
    ) -> None:
        """Learn who is connected, which nodes there are, and their versions."""
        self.open = set(links)
        if isinstance(step, s.Open | s.Resume) and step.client in links:
            self.session.add(step.client)
        if s.closes_session(step):
            assert isinstance(step, s.Talk)
            self.session.discard(step.client)
        for call, reply in replies:
            self.last_zxid = max(self.last_zxid, reply.zxid)
            self.paths.observe(call, reply)

    def call(self) -> s.Call:
        while True:
            make = self.random.choices(self.makers, self.weights)[0][1]
            call = self._malformed() if self.random.random() < 0.008 else make()
            if s.NAMES[call.op] not in self.without:
                return call

    def _flag(self) -> bool | None:
        return self.random.choice([False, False, True, None])

    def _arrive(self, client: int) -> s.Step:
        return s.Open(client, self.random.choice([30_000, 40_000, 90_000]), self._flag())

    def _come_back(self, client: int) -> s.Step:
        dice = self.random.random()
        return s.Resume(client, dice > 0.15, 1_000 if 0.15 < dice < 0.25 else 0)

    def _auth(self) -> s.Call:
        # Credentials that do not match are no failure in ZooKeeper: they are another identity.
        scheme, credential = self.random.choice(
            [
                *[("digest", user) for user in USERS * 4],
                ("digest", "nocolon"),
                ("digest", ""),
                ("ip", "1.2.3.4"),
                ("world", "anyone"),
                ("auth", ""),
                ("nonsense", "x"),
            ]
        )
        body = wire.auth_body(scheme, credential.encode())
        return s.Call(p.AUTH, body, f"{scheme} {credential!r}")

    def _acl(self) -> tuple[wire.AclEntry, ...] | None:
        dice = self.random.random()
        if dice < 0.75:
            return wire.OPEN_ACL
        return self.random.choice(ACLS if dice < 0.95 else BAD_ACLS)

    def _version(self, path: object, field: int) -> int:
        dice = self.random.random()
        if dice < 0.4:
            return -1
        if dice < 0.85:
            return self.paths.version(path, field)
        return self.random.choice([0, 1, 2, 3, -2, 2**31 - 1])

    def _create(self) -> s.Call:
        op = self.random.choice(
            [p.CREATE] * 3 + [p.CREATE2] * 3 + [p.CREATE_CONTAINER, p.CREATE_TTL]
        )
        flags = self.random.choice([0, 0, 0, 1, 1, 2, 3])
        if op == p.CREATE_CONTAINER:
            flags = p.FLAG_CONTAINER
        elif op == p.CREATE_TTL:
            flags = self.random.choice([p.FLAG_TTL, p.FLAG_TTL_SEQUENTIAL])
        if self.random.random() < 0.04:
            flags = self.random.choice([-1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 99])
        path = self.paths.new(sequential=flags in (2, 3, 6))
        data, acl = self.random.choice(VALUES), self._acl()
        # A live TTL is far longer than the run, so that no node goes at its own time. A bad one
        # with other flags ends ZooKeeper 3.8.0 for good, so those do not meet.
        ttl_ms = 10**9 if op == p.CREATE_TTL else None
        if flags in (p.FLAG_TTL, p.FLAG_TTL_SEQUENTIAL) and op == p.CREATE_TTL:
            ttl_ms = self.random.choice([10**9] * 6 + [0, -1, 2**40, 2**63 - 1, 1_099_511_627_775])
        body = wire.create_body(path, data, flags, acl, ttl_ms)
        text = f"{path!r} {len(data or b'')} bytes, flags {flags}, acl {acl}"
        return s.Call(op, body, text if ttl_ms is None else f"{text}, ttl {ttl_ms}")

    def _delete(self) -> s.Call:
        path = self.paths.any()
        version = self._version(path, 4)
        return s.Call(p.DELETE, wire.versioned_body(path, version), f"{path!r} version {version}")

    def _set_data(self) -> s.Call:
        path, data = self.paths.any(), self.random.choice(VALUES)
        version = self._version(path, 4)
        body = wire.set_data_body(path, data, version)
        return s.Call(p.SET_DATA, body, f"{path!r} {len(data or b'')} bytes, version {version}")

    def _read(self) -> s.Call:
        path, watch = self.paths.any(), self.random.random() < 0.4
        op = self.random.choice([p.EXISTS, p.GET_DATA, p.GET_CHILDREN, p.GET_CHILDREN2])
        return s.Call(op, wire.read_body(path, watch), f"{path!r} watch {watch}")

    def _acl_read_or_write(self) -> s.Call:
        path = self.paths.any()
        if self.random.random() < 0.5:
            return s.Call(p.GET_ACL, wire.string(path), f"{path!r}")
        acl, version = self._acl(), self._version(path, 6)
        if self.paths.is_special(path):
            acl = wire.OPEN_ACL  # a locked root would end the run's use
        text = f"{path!r} acl {acl}, version {version}"
        return s.Call(p.SET_ACL, wire.set_acl_body(path, acl, version), text)

    def _check(self) -> s.Call:
        path = self.paths.any()
        version = self._version(path, 4)
        return s.Call(p.CHECK, wire.versioned_body(path, version), f"{path!r} version {version}")

    def _failing_check(self) -> s.Call:
        # ZooKeeper 3.8.0 never answers a check outside of a multi that succeeds.
        path, version = self.paths.any(), 2**30
        return s.Call(p.CHECK, wire.versioned_body(path, version), f"{path!r} version {version}")

    def _multi(self) -> s.Call:
        parts = []
        makers = [self._create] * 4 + [self._delete] * 2 + [self._set_data] * 3 + [self._check]
        for _ in range(self.random.choice([0, 1, 1, 2, 2, 3, 4, 6])):
            parts.append(self.random.choice(makers)())
        if self.random.random() < 0.02:
            parts.append(self._acl_read_or_write())
        body = wire.multi_body([(part.op, part.body) for part in parts])
        return s.Call(p.MULTI, body, f"[{'; '.join(str(part) for part in parts)}]")

    def _multi_read(self) -> s.Call:
        parts = []
        for _ in range(self.random.choice([0, 1, 2, 3])):
            path = self.paths.any()
            op = self.random.choice([p.GET_DATA, p.GET_CHILDREN])
            parts.append(s.Call(op, wire.read_body(path, False), f"{path!r}"))
        body = wire.multi_body([(part.op, part.body) for part in parts])
        return s.Call(p.MULTI_READ, body, f"[{'; '.join(str(part) for part in parts)}]")

    def _add_watch(self) -> s.Call:
        path = self.paths.any()
        mode = self.random.choice([0, 0, 0, 1, 1, 1, 1, 2 if self.random.random() < 0.1 else 0])
        return s.Call(p.ADD_WATCH, wire.string(path) + wire.integer(mode), f"{path!r} mode {mode}")

    def _watch_query(self) -> s.Call:
        path = self.paths.any()
        op = self.random.choice([p.CHECK_WATCHES, p.REMOVE_WATCHES, p.REMOVE_WATCHES])
        kind = self.random.choice([1, 2, 3, 3, 3, 7 if self.random.random() < 0.1 else 3])
        return s.Call(op, wire.string(path) + wire.integer(kind), f"{path!r} kind {kind}")

    def _set_watches(self) -> s.Call:
        op = self.random.choice([p.SET_WATCHES, p.SET_WATCHES2])
        since = max(0, self.last_zxid - self.random.choice([0, 0, 3, 10, 60]))
        lists = [
            [self.paths.any() for _ in range(self.random.choice([0, 0, 1, 2]))]
            for _ in range(3 if op == p.SET_WATCHES else 5)
        ]
        body = wire.long(since) + b"".join(
            wire.vector([wire.string(path) for path in paths]) for paths in lists
        )
        return s.Call(op, body, f"since {since} {lists}")

    def _small(self) -> s.Call:
        op = self.random.choice(
            [p.PING, p.SYNC, p.GET_EPHEMERALS, p.GET_ALL_CHILDREN_NUMBER, p.WHO_AM_I, p.RECONFIG]
        )
        path = self.paths.any()
        if op in (p.PING, p.WHO_AM_I):
            return s.Call(op, b"", "")
        if op == p.RECONFIG:
            body = wire.string("server.1=x") + wire.string(None) * 2 + wire.long(-1)
            return s.Call(op, body, "")
        return s.Call(op, wire.string(path), f"{path!r}")

    def _malformed(self) -> s.Call:
        """A known operation whose body ends too early."""
        call = self.random.choices(self.makers, self.weights)[0][1]()
        keep = self.random.randrange(len(call.body)) if call.body else 0
        return s.Call(call.op, call.body[:keep], f"cut at {keep}: {call.text}")
