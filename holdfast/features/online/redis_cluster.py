"""A Redis or Valkey cluster: 16,384 slots of keys, each with a primary and its replicas.

The map of slots is read from any server that answers, and read again whenever a server says that a
slot is elsewhere, or is away. Commands go to all primaries at the same time, those of each in one
pipeline. What reads goes to a replica while its primary is away: its rows may be older, which is
what eventual tables allow, and no other table is here.
"""

from __future__ import annotations

import binascii
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from redis.exceptions import (
    AskError,
    ClusterDownError,
    MovedError,
    RedisError,
    ResponseError,
    TryAgainError,
)

from holdfast.features.address import FeaturesAddress
from holdfast.features.online.keyspace import RespCommand, is_reached
from holdfast.features.online.resp import (
    Reply,
    RespSettings,
    Server,
    pack,
    parse_host,
    talk,
)
from holdfast.features.online.resp_failures import translate
from holdfast.wire.errors import HoldfastError, Unavailable

SLOTS: Final = 16_384
# Commands are sent again so often: a slot that moves twice, a primary that has just died.
ROUNDS_MAX: Final = 5
# Before each, so that whoever is to take over has a moment.
AGAIN_S: Final = 0.05
# A map that several threads want at once is read once.
_MAP_AGE_S: Final = 0.1

_ASKING: Final = pack(b"ASKING")
_READONLY: Final = pack(b"READONLY")


def slot_of(key: bytes) -> int:
    """The slot of a key: of all of it, or of what stands between its first braces."""
    start = key.find(b"{")
    if start >= 0:
        end = key.find(b"}", start + 1)
        if end > start + 1:
            key = key[start + 1 : end]
    return binascii.crc_hqx(key, 0) % SLOTS


@dataclass(frozen=True)
class SlotMap:
    """Who has which slots: for each slot its primary, and for each primary its replicas."""

    primaries: tuple[str, ...] = ()  # by slot
    replicas: dict[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(slots=True)
class _Errand:
    """A command on its way."""

    command: RespCommand
    to: str = ""  # a server that was named for it; else whoever has its slot
    asking: bool = False
    replica: bool = False
    reply: Reply = None


class ServerCluster:
    """All keys are on the primaries of a cluster."""

    def __init__(self, address: FeaturesAddress, answer_s: float) -> None:
        self._settings = RespSettings(address, answer_s)
        self._first = address.hosts
        self._answer_s = answer_s
        self._servers: dict[str, Server] = {}
        self._map = SlotMap()
        self._read_at_s = 0.0
        self._lost: set[str] = set()  # did not answer when last asked
        self._lock = threading.Lock()
        self._reading = threading.Lock()

    def slot_of(self, key: bytes) -> int:
        return slot_of(key)

    def name_of(self, slot: int) -> str:
        known = self._map.primaries
        return known[slot] if known else self._first[0]

    def primaries(self) -> list[Server]:
        self._known_map()
        return [self._server(name) for name in sorted(set(self._map.primaries))]

    def all_servers(self) -> list[Server]:
        self._known_map()
        self._read_map()  # a replica may have come
        names = set(self._map.primaries)
        names |= {name for each in self._map.replicas.values() for name in each}
        return [self._server(name) for name in sorted(names)]

    def close(self) -> None:
        with self._lock:
            servers, self._servers = list(self._servers.values()), {}
        for server in servers:
            server.close()
        self._settings.close()

    def exchange(self, commands: Sequence[RespCommand], what: str) -> list[Reply]:
        self._known_map()
        deadline_s = time.monotonic() + self._answer_s
        errands = [_Errand(command) for command in commands]
        left: Sequence[_Errand] = errands
        for again in range(ROUNDS_MAX):
            if again:
                time.sleep(AGAIN_S * again)
            self._run(left, deadline_s)
            left = self._left(left, deadline_s)
            if not left or time.monotonic() > deadline_s:
                break
        for errand in left:
            raise self._failed(errand, what)
        return [errand.reply for errand in errands]

    # --- private ----------------------------------------------------------------------------------

    def _run(self, errands: Sequence[_Errand], deadline_s: float) -> None:
        """One round trip to all servers that are concerned."""
        sent: dict[Server, list[bytes]] = {}
        places: dict[Server, list[tuple[int, _Errand]]] = {}
        for errand in errands:
            server = self._server(self._target(errand))
            words = sent.setdefault(server, [])
            if errand.asking or errand.replica:
                words.append(_ASKING if errand.asking else _READONLY)
            places.setdefault(server, []).append((len(words), errand))
            words.append(errand.command.packed)
        found = talk(sent, deadline_s)
        for server, concerned in places.items():
            if all(is_reached(reply) for reply in found[server]):
                self._lost.discard(server.name)
            else:
                self._lost.add(server.name)
            for place, errand in concerned:
                errand.to, errand.reply = server.name, found[server][place]

    def _target(self, errand: _Errand) -> str:
        if errand.to and (errand.asking or errand.replica):
            return errand.to
        return self._map.primaries[errand.command.slot]

    def _left(self, errands: Sequence[_Errand], deadline_s: float) -> list[_Errand]:
        """Those that have to be sent again; to whom, is in them."""
        left: list[_Errand] = []
        moved: dict[int, str] = {}
        stale = False
        for errand in errands:
            reply, was_replica = errand.reply, errand.replica
            errand.asking = errand.replica = False
            if not isinstance(reply, Exception):
                continue
            if isinstance(reply, MovedError):
                moved[errand.command.slot] = _named(reply, errand.to)
            elif isinstance(reply, AskError):
                errand.to, errand.asking = _named(reply, errand.to), True
            elif isinstance(reply, (ClusterDownError, TryAgainError)):
                stale = True
            elif isinstance(reply, ResponseError):
                continue  # what the server says of this command
            else:
                stale = True
                replicas = self._map.replicas.get(errand.to, ())
                if errand.command.reads and replicas and not was_replica:
                    errand.to = replicas[errand.command.slot % len(replicas)]
                    errand.replica = True
            left.append(errand)
        if stale or moved:
            self._read_map(deadline_s)
            self._correct_map(moved)
        return left

    def _failed(self, errand: _Errand, what: str) -> HoldfastError:
        reply = errand.reply
        if isinstance(reply, (MovedError, AskError)):
            return Unavailable(
                what,
                why=f"slot {errand.command.slot} of the cluster moves about: {reply}",
                fix="try again when the cluster is at rest: CLUSTER INFO",
            )
        return translate(reply, what, errand.to)

    def _server(self, name: str) -> Server:
        with self._lock:
            if name not in self._servers:
                host, port = parse_host(name)
                self._servers[name] = Server(name, self._settings, host=host, port=port)
            return self._servers[name]

    # --- the map ----------------------------------------------------------------------------------

    def _known_map(self) -> SlotMap:
        if not self._map.primaries and (error := self._read_map()) is not None:
            raise translate(error, "the cluster does not say where its keys are", self._first[0])
        return self._map

    def _correct_map(self, moved: Mapping[int, str]) -> None:
        """Who said that he has a slot no more is believed before the map."""
        with self._lock:
            known = self._map.primaries
            if any(known[slot] != name for slot, name in moved.items()):
                made = list(known)
                for slot, name in moved.items():
                    made[slot] = name
                self._map = SlotMap(tuple(made), self._map.replicas)

    def _read_map(self, deadline_s: float | None = None) -> Exception | None:
        """Read it from whoever answers first; what the last one said, if none does."""
        deadline_s = deadline_s or time.monotonic() + self._answer_s
        with self._reading:
            if time.monotonic() - self._read_at_s < _MAP_AGE_S:
                return None
            with self._lock:
                known = list(dict.fromkeys((*self._servers, *self._first)))
            known.sort(key=self._lost.__contains__)
            last: Exception | None = None
            for name in known:
                try:
                    found = _slot_map(self._ask_slots(name, deadline_s), name)
                except (RedisError, OSError, HoldfastError) as error:
                    last = error
                else:
                    with self._lock:
                        self._map, self._read_at_s = found, time.monotonic()
                    return None
                if time.monotonic() > deadline_s:
                    break
            return last

    def _ask_slots(self, name: str, deadline_s: float) -> Reply:
        return self._server(name).ask(b"CLUSTER", b"SLOTS", deadline_s=deadline_s)


def _slot_map(reply: Reply, asked: str) -> SlotMap:
    """What CLUSTER SLOTS has said, asked of that server."""
    primaries = [""] * SLOTS
    replicas: dict[str, tuple[str, ...]] = {}
    for first, last, primary, *others in reply:
        name = _place(primary, asked)
        primaries[first : last + 1] = [name] * (last + 1 - first)
        replicas[name] = tuple(sorted(_place(other, asked) for other in others))
    if "" in primaries:
        raise ClusterDownError("CLUSTERDOWN not every slot has a primary")
    return SlotMap(tuple(primaries), replicas)


def _place(node: Sequence[Reply], asked: str) -> str:
    """HOST:PORT of a node. Without a host it is the one that was asked."""
    host = (node[0] or b"").decode()
    if host in ("", "?"):
        host = parse_host(asked)[0]
    return f"[{host}]:{node[1]}" if ":" in host else f"{host}:{node[1]}"


def _named(error: AskError, asked: str) -> str:
    """Whom a redirection names."""
    host = error.host or parse_host(asked)[0]
    return f"[{host}]:{error.port}" if ":" in host else f"{host}:{error.port}"
