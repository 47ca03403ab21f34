"""From an address to the servers behind it, without a session and without starting one."""

from __future__ import annotations

import socket
import ssl
import time
from dataclasses import dataclass, field
from typing import Final

from holdfast.coordination import access, launch, tls
from holdfast.coordination.address import SECRET, TLS, EmbeddedAddress, parse
from holdfast.wire.errors import Unavailable

ANSWER_BYTES_MAX: Final = 4 * 1024 * 1024


@dataclass(frozen=True)
class ServerAddress:
    """Where one server listens."""

    host: str
    port: int
    tls: ssl.SSLContext | None = None


def with_scheme(address: str) -> str:
    """HOST:PORT is short for zk://HOST:PORT."""
    return address if ":/" in address or address.startswith("embedded:") else f"zk://{address}"


def places(address: str) -> list[ServerAddress]:
    """Every server that the address names."""
    found = parse(with_scheme(address))
    if isinstance(found, EmbeddedAddress):
        return [_of_folder(found)]
    context = None if found.tls is None else tls.context(found.tls, access.shown_to(found))
    return [ServerAddress(host, port, context) for host, port in found.hosts]


def _of_folder(address: EmbeddedAddress) -> ServerAddress:
    """A running server writes into its folder where it listens."""
    found = launch.find(address.folder)
    if found is None:
        raise Unavailable(
            f"no server runs over {address.folder}",
            why="a running server holds the folder's lock and keeps its address in it",
            fix=f"holdfast coord serve --data {address.folder}",
        )
    host, _, port = found.rpartition(":")
    context = None
    if launch.speaks_tls(address.folder):
        context = tls.context(TLS(verify=SECRET), access.shown_to(address))
    return ServerAddress(host.strip("[]"), int(port), context)


@dataclass(frozen=True)
class ServerStatus:
    """What one server says of itself. A number is None when the server does not tell it."""

    address: str
    answers: bool
    version: str = ""
    mode: str = ""
    zxid: str = ""
    nodes: int | None = None
    watches: int | None = None
    connections: int | None = None
    ephemerals: int | None = None
    latency_ms_avg: float | None = None
    latency_ms_max: float | None = None
    data_folder: str = ""
    round_trip_ms: float | None = None
    metrics: dict[str, str] = field(default_factory=dict)


def ask(
    host: str, port: int, word: str, *, timeout_s: float = 2.0, tls: ssl.SSLContext | None = None
) -> str:
    """The server's answer; an empty string when there is none in time."""
    deadline = time.monotonic() + timeout_s
    answer = bytearray()
    try:
        with socket.create_connection((host, port), timeout=timeout_s) as plain:
            link = tls.wrap_socket(plain, server_hostname=host) if tls else plain
            link.sendall(word.encode())
            while (left_s := deadline - time.monotonic()) > 0 and len(answer) < ANSWER_BYTES_MAX:
                link.settimeout(left_s)
                chunk = link.recv(65_536)
                if not chunk:
                    return answer.decode(errors="replace")
                answer += chunk
    except OSError:
        return ""
    return ""


def status(
    host: str, port: int, *, timeout_s: float = 2.0, tls: ssl.SSLContext | None = None
) -> ServerStatus:
    """One server's state. A server that allows only some words is shown with what it told."""
    address = f"{host}:{port}"
    before = time.perf_counter()
    server = _pairs(ask(host, port, "srvr", timeout_s=timeout_s, tls=tls), ":")
    took_ms = (time.perf_counter() - before) * 1_000
    if "Zookeeper version" not in server:
        return ServerStatus(address, answers=False)
    metrics = _pairs(ask(host, port, "mntr", timeout_s=timeout_s, tls=tls), "\t")
    settings = _pairs(ask(host, port, "conf", timeout_s=timeout_s, tls=tls), "=")
    return ServerStatus(
        address,
        answers=True,
        version=server["Zookeeper version"].split(",")[0],
        mode=server.get("Mode", ""),
        zxid=server.get("Zxid", ""),
        nodes=_whole(server.get("Node count")),
        watches=_whole(metrics.get("zk_watch_count")),
        connections=_whole(server.get("Connections")),
        ephemerals=_whole(metrics.get("zk_ephemerals_count")),
        latency_ms_avg=_number(metrics.get("zk_avg_latency")),
        latency_ms_max=_number(metrics.get("zk_max_latency")),
        data_folder=settings.get("dataDir", ""),
        round_trip_ms=round(took_ms, 2),
        metrics=metrics,
    )


def _pairs(text: str, between: str) -> dict[str, str]:
    parts = (line.partition(between) for line in text.splitlines())
    return {key.strip(): value.strip() for key, found, value in parts if found}


def _whole(text: str | None) -> int | None:
    number = _number(text)
    return None if number is None else int(number)


def _number(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None
