"""What a Valkey or Redis says of itself: whether it can keep what a table promises, and how it
is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from redis.exceptions import RedisError

from holdfast.features.online.keyspace import Keyspace
from holdfast.features.online.resp import Reply, Server, pack, talk
from holdfast.features.online.resp_failures import RAISED, code_of, translate
from holdfast.features.online.store import StoreStatus
from holdfast.features.table import Level, Table
from holdfast.wire.errors import HoldfastError, Refused

# `SET … PXAT` is of this version; older ones take no time of day.
VERSION_MIN: Final = (6, 2)
# Of `maxmemory`; beyond it a person is told before writes are refused.
MEMORY_PART_MAX: Final = 0.9

# What has to be set so that an answer means: it is on the disk.
_DURABLE: Final = {
    "appendonly": "yes",
    "appendfsync": "always",
    "no-appendfsync-on-rewrite": "no",
}

Info = Mapping[str, str]


def check(server: Server, table: Table, *, cluster: bool) -> None:
    """`Refused`: the server, as it is set up, cannot keep what the table promises."""
    what = f"table {table.name!r} cannot be kept at {server.name}"
    info = _info(server, what)
    if _version(info) < VERSION_MIN:
        wanted = ".".join(map(str, VERSION_MIN))
        raise Refused(
            what,
            why=f"it is Redis {info.get('redis_version')}, and rows need {wanted} or newer",
            fix="take a newer Redis, or Valkey",
        )
    if (info.get("cluster_enabled") == "1") != cluster:
        raise Refused(
            what,
            why="it is part of a cluster" if not cluster else "it is part of no cluster",
            fix="write cluster=yes in the address" if not cluster else "leave cluster=yes out",
        )
    if info.get("role") == "slave":
        raise Refused(
            what,
            why=f"it is a replica of {info.get('master_host')}:{info.get('master_port')}",
            fix="name the server that takes writes",
        )
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        raise Refused(
            what,
            why=f"its maxmemory-policy is {policy}: with full memory it throws rows away, and"
            " nobody is told",
            fix="CONFIG SET maxmemory-policy noeviction, and in its configuration file",
        )
    if table.write_level is Level.STRONG:
        _check_durable(server, what)


def status(keys: Keyspace, *, ours: bool, closed: bool) -> StoreStatus:
    """How the servers are, asked all at the same time. Raises nothing."""
    engine = "valkey" if ours else "redis"
    if closed:
        return StoreStatus(engine, (), "the store is closed")
    try:
        servers = keys.all_servers()
        primaries = {server.name for server in keys.primaries()}
        replies = talk({server: [pack(b"INFO")] for server in servers})
        states, troubles = [], []
        for server in servers:
            state, trouble, named = _state(server, replies[server][0], server.name in primaries)
            states.append((server.name, state))
            engine = named or engine
            if trouble:
                troubles.append(trouble)
        if ours and not troubles:
            troubles += _loose(servers[0])
    except HoldfastError as error:
        return StoreStatus(engine, (), error.sentence)
    except (RedisError, OSError) as error:
        return StoreStatus(engine, (), str(error))
    return StoreStatus(engine, tuple(states), "; ".join(troubles))


# --- private --------------------------------------------------------------------------------------


def _info(server: Server, what: str) -> Info:
    try:
        return _parsed(server.ask(b"INFO"))
    except RAISED as error:
        raise translate(error, what, server.name) from error


def _parsed(reply: bytes) -> Info:
    lines = reply.decode(errors="replace").splitlines()
    pairs = (line.split(":", 1) for line in lines if ":" in line and not line.startswith("#"))
    return {name: value.strip() for name, value in pairs}


def _version(info: Info) -> tuple[int, ...]:
    text = info.get("redis_version", "0")
    return tuple(int(part) for part in text.split(".") if part.isdigit())


def _check_durable(server: Server, what: str) -> None:
    try:
        loose = _loose(server)
    except RAISED as error:
        raise translate(error, what, server.name) from error
    if loose:
        raise Refused(
            what,
            why=f"{loose[0]}: a crash would lose writes that were acknowledged",
            fix="set appendonly yes, appendfsync always and no-appendfsync-on-rewrite no; or make"
            " the table eventual",
        )


def _loose(server: Server) -> list[str]:
    """What is set so that acknowledged writes may be lost."""
    found: dict[str, str] = {}
    for name in _DURABLE:
        reply: Sequence[bytes] = server.ask(b"CONFIG", b"GET", name.encode())
        found |= {name: reply[1].decode()} if len(reply) == 2 else {}
    return [
        f"{name} is {found.get(name, 'not known')}"
        for name, wanted in _DURABLE.items()
        if found.get(name) != wanted
    ]


def _state(server: Server, reply: Reply, is_primary: bool) -> tuple[str, str, str]:
    """Its state, what is wrong with it, and what it is."""
    if isinstance(reply, Exception):
        if code_of(reply) == "LOADING":
            return "joining", f"{server.name} reads what it has on disk", ""
        error = translate(reply, f"{server.name} does not answer", server.name)
        return "down", f"{error.what} ({error.why})", ""
    info = _parsed(reply)
    if info.get("loading") == "1":  # it says how it is, and knows nothing else yet
        return "joining", f"{server.name} reads what it has on disk", ""
    valkey = info.get("valkey_version")
    engine = f"valkey {valkey}" if valkey else f"redis {info.get('redis_version', '')}"
    return "up", _trouble(server, info, is_primary=is_primary), engine


def _trouble(server: Server, info: Info, *, is_primary: bool) -> str:
    used, most = int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        return f"{server.name} throws rows away when its memory is full (maxmemory-policy {policy})"
    if info.get("aof_last_write_status", "ok") != "ok":
        return f"{server.name} could not write to its disk"
    if most and used > MEMORY_PART_MAX * most:
        return f"{server.name} uses {used:,} of its {most:,} bytes of memory"
    if is_primary and info.get("role") == "slave":
        return f"{server.name} is a replica, and takes no writes"
    if not is_primary and info.get("master_link_status", "up") != "up":
        return f"{server.name} has lost its primary"
    return ""
