"""The four-letter words: what an operator, a monitor or a client asks without a session.

The texts keep ZooKeeper's form, line by line, since programs read them. Anybody who reaches the
port may ask, so only words that tell how the server is are answered, and none that tells who is
connected, what is in the tree, or where the folder is; an open server answers all.
"""

from __future__ import annotations

import platform
import resource
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from holdfast import __version__
from holdfast.coordination.embedded.context import ServerContext
from holdfast.wire.limits import CONNECTIONS_MAX

# Clients read the first part: what we speak. The rest says who we are.
SPOKEN: Final = "3.8.0"
VERSION: Final = f"{SPOKEN}-holdfast-{__version__}, built on 2026-11-15 00:00 UTC"


def _sent(server: ServerContext) -> int:
    return server.counters.sent_closed + sum(link.sent for link in server.connections)


def _ruok(server: ServerContext) -> str:
    return "imok"


def _isro(server: ServerContext) -> str:
    return "rw"


def _summary(server: ServerContext) -> list[str]:
    count = server.counters
    low, high = int(count.latency_min_s * 1000), int(count.latency_max_s * 1000)
    return [
        f"Latency min/avg/max: {low}/{count.latency_average_s * 1000:.4f}/{high}",
        f"Received: {count.received}",
        f"Sent: {_sent(server)}",
        f"Connections: {len(server.connections)}",
        f"Outstanding: {server.pipeline.waiting}",
        f"Zxid: {server.tree.last_zxid:#x}",
        "Mode: standalone",
        f"Node count: {len(server.tree.nodes)}",
    ]


def _clients(server: ServerContext) -> list[str]:
    return [
        f" /{link.peer}[1](queued={link.pending},recved={link.received},sent={link.sent}"
        f",sid={link.session:#x})"
        for link in server.connections
    ]


def _srvr(server: ServerContext) -> str:
    return "\n".join([f"Zookeeper version: {VERSION}", *_summary(server), ""])


def _stat(server: ServerContext) -> str:
    lines = [f"Zookeeper version: {VERSION}", "Clients:", *_clients(server), ""]
    return "\n".join([*lines, *_summary(server), ""])


def _cons(server: ServerContext) -> str:
    return "\n".join([*_clients(server), "", ""])


def _mntr(server: ServerContext) -> str:
    count = server.counters
    values: dict[str, object] = {
        "version": VERSION,
        "server_state": "standalone",
        "avg_latency": f"{count.latency_average_s * 1000:.4f}",
        "max_latency": int(count.latency_max_s * 1000),
        "min_latency": int(count.latency_min_s * 1000),
        "packets_received": count.received,
        "packets_sent": _sent(server),
        "num_alive_connections": len(server.connections),
        "outstanding_requests": server.pipeline.waiting,
        "znode_count": len(server.tree.nodes),
        "watch_count": server.watches.count,
        "ephemerals_count": sum(len(opened.ephemerals) for opened in server.tree.sessions.values()),
        "approximate_data_size": _data_bytes(server),
        "global_sessions": len(server.tree.sessions),
        "open_file_descriptor_count": _open_files(),
        "max_file_descriptor_count": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        "uptime": int((server.clock.now_s() - count.since_s) * 1000),
        "holdfast_disk_full": int(bool(server.disk_full)),
        "holdfast_snapshots": server.store.snapshots_taken,
        "holdfast_snapshot_failures": server.store.snapshot_failures,
    }
    return "".join(f"zk_{key}\t{value}\n" for key, value in values.items())


def _data_bytes(server: ServerContext) -> int:
    return sum(len(path) + len(node.data or b"") for path, node in server.tree.nodes.items())


def _open_files() -> int:
    listing = Path("/proc/self/fd")
    return sum(1 for _ in listing.iterdir()) if listing.exists() else -1


def _envi(server: ServerContext) -> str:
    values = {
        "zookeeper.version": VERSION,
        "host.name": socket.gethostname(),
        "python.version": platform.python_version(),
        "python.home": sys.prefix,
        "os.name": platform.system(),
        "os.arch": platform.machine(),
        "os.version": platform.release(),
        "user.dir": str(Path.cwd()),
    }
    return "Environment:\n" + "".join(f"{key}={value}\n" for key, value in values.items())


def _conf(server: ServerContext) -> str:
    values: dict[str, object] = {
        "dataDir": server.store.folder,
        "tickTime": server.tick_ms,
        "maxClientCnxns": CONNECTIONS_MAX,
        "minSessionTimeout": 2 * server.tick_ms,
        "maxSessionTimeout": 20 * server.tick_ms,
        "serverId": 0,
    }
    return "".join(f"{key}={value}\n" for key, value in values.items())


def _dump(server: ServerContext) -> str:
    sessions = server.tree.sessions
    lines = ["SessionTracker dump:", f"Session Sets ({len(sessions)}):"]
    lines += [f"\t{session:#x}\t{opened.timeout_ms}ms" for session, opened in sessions.items()]
    owners = {session: sorted(server.tree.ephemerals_of(session)) for session in sessions}
    owners = {session: paths for session, paths in owners.items() if paths}
    lines.append(f"ephemeral nodes dump:\nSessions with Ephemerals ({len(owners)}):")
    for session, paths in owners.items():
        lines.append(f"{session:#x}:")
        lines += [f"\t{path}" for path in paths]
    return "\n".join([*lines, ""])


def _wchs(server: ServerContext) -> str:
    watches = server.watches
    return (
        f"{watches.watcher_count} connections watching {watches.path_count} paths\n"
        f"Total watches:{watches.count}\n"
    )


_WORDS: Final[dict[bytes, Callable[[ServerContext], str]]] = {
    b"ruok": _ruok,
    b"isro": _isro,
    b"srvr": _srvr,
    b"stat": _stat,
    b"cons": _cons,
    b"mntr": _mntr,
    b"envi": _envi,
    b"conf": _conf,
    b"dump": _dump,
    b"wchs": _wchs,
}


# Numbers that say how the server is: for probes and monitors.
_FOR_ANYBODY: Final = frozenset({b"ruok", b"isro", b"srvr", b"mntr"})


def answer_word(server: ServerContext, letters: bytes) -> str | None:
    """The answer to a word; None if it is not one of ours."""
    answer = _WORDS.get(letters)
    if answer is None:
        return None
    if letters not in _FOR_ANYBODY and not server.tells_all:
        return f"{letters.decode()} is not executed because it is not in the whitelist.\n"
    return answer(server)
