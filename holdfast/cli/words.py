"""Four-letter words: what every server of the ZooKeeper family answers without a session."""

from __future__ import annotations

import socket
import ssl
import time
from dataclasses import dataclass, field
from typing import Final

ANSWER_BYTES_MAX: Final = 4 * 1024 * 1024


@dataclass(frozen=True)
class Status:
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
) -> Status:
    """One server's state. A server that allows only some words is shown with what it told."""
    address = f"{host}:{port}"
    before = time.perf_counter()
    server = _pairs(ask(host, port, "srvr", timeout_s=timeout_s, tls=tls), ":")
    took_ms = (time.perf_counter() - before) * 1_000
    if "Zookeeper version" not in server:
        return Status(address, answers=False)
    metrics = _pairs(ask(host, port, "mntr", timeout_s=timeout_s, tls=tls), "\t")
    settings = _pairs(ask(host, port, "conf", timeout_s=timeout_s, tls=tls), "=")
    return Status(
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
