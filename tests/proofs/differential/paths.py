"""The paths of a run: few names under one base that changes now and then."""

from __future__ import annotations

import random

from holdfast.coordination.embedded import protocol as p
from tests.proofs import wire
from tests.proofs.differential.steps import Call

SPECIAL = ("/", "/zookeeper", "/zookeeper/quota", "/zookeeper/config")
BAD: tuple[str | bytes, ...] = (
    "",
    "no-slash",
    "//",
    "/.",
    "/..",
    "/x/",
    "/x//y",
    "/x/./y",
    "/x/../y",
    "/x\x00y",
    "/x\x01",
    "/x\x7f",
    "/x\x9f",
    "/\ud7ff",
    "/\ue000",
    "/\uf8ff",
    "/\uffee",
    "/\ufff0",
    "/\U0001f600",
    b"/\xff\xfe",
)
NAMES = ("a", "b", "ü")
KNOWN_MAX = 60


class Paths:
    """Chooses paths, and remembers which nodes there are and what their versions were."""

    def __init__(self, source: random.Random) -> None:
        self.random = source
        self.epoch = -1
        self.known: dict[str, wire.Stat | None] = {}
        self.base = "/r"

    def new_epoch(self) -> str:
        """Another base: rights that nobody holds any more stay behind in the old one."""
        self.epoch += 1
        self.base = f"/r{self.epoch}"
        self.known = {}
        return self.base

    def any(self) -> str | bytes:
        dice = self.random.random()
        if dice < 0.6 and self.known:
            return self.random.choice(list(self.known))
        if dice < 0.94:
            return self._from_alphabet()
        if dice < 0.98:
            return self.random.choice([*SPECIAL, self.base, "/zookeeper/a"])
        return self.random.choice(BAD)

    def new(self, sequential: bool) -> str | bytes:
        """A path for a create: mostly below something that exists."""
        dice = self.random.random()
        if dice < 0.04:
            return self.random.choice(BAD)
        if dice < 0.06:
            return self.random.choice([*SPECIAL, "/zookeeper/a"])
        path = self._from_alphabet()
        if dice < 0.4 and self.known:
            path = f"{self.random.choice(list(self.known))}/{self.random.choice(NAMES)}"
            if path.count("/") > 6:
                path = self._from_alphabet()
        return path + self.random.choice(["", "-", "/"]) if sequential else path

    def is_special(self, path: object) -> bool:
        return path in SPECIAL or path in ("", self.base)

    def version(self, path: object, field: int) -> int:
        """The last version of a node that somebody saw; `field` counts in the order of a Stat."""
        stat = self.known.get(path) if isinstance(path, str) else None
        return 0 if stat is None else int(stat[field])

    def observe(self, call: Call, reply: wire.Reply) -> None:
        if reply.error or not reply.body:
            if call.op == p.DELETE and reply.error in (0, p.NO_NODE):
                self.known.pop(_path_of(call), None)
            return
        reader = wire.Reader(reply.body)
        if call.op in (p.CREATE, p.CREATE2, p.CREATE_CONTAINER, p.CREATE_TTL):
            self._learn(reader.string(), reader.stat() if reader.rest else None)
        elif call.op in (p.EXISTS, p.SET_DATA, p.SET_ACL):
            self._learn(_path_of(call), reader.stat())

    def _learn(self, path: str | None, stat: wire.Stat | None) -> None:
        if path is None or not path.startswith(self.base + "/"):
            return
        self.known[path] = stat
        while len(self.known) > KNOWN_MAX:
            self.known.pop(next(iter(self.known)))

    def _from_alphabet(self) -> str:
        depth = self.random.choice([1, 1, 2, 2, 3])
        return self.base + "".join(f"/{self.random.choice(NAMES)}" for _ in range(depth))


def _path_of(call: Call) -> str:
    return wire.Reader(call.body).string() or ""
