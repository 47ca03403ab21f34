"""Envoy's own door: a Unix socket in the gateway's folder, which only its owner may open."""

from __future__ import annotations

import http.client
import json
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from holdfast.serve.gateway.breakers import Host
from holdfast.serve.gateway.listener import ADMIN_SOCKET
from holdfast.wire.errors import Unavailable

# One question to Envoy's own door.
ENVOY_ASK_S: Final = 5.0

# Suffixes of the statistics that name the version of a file, and what stands before the name.
_TAKEN = ".version_text"


class Admin:
    """Asks Envoy. For one thread at a time. `Unavailable`: it does not answer."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._link: _Link | None = None

    def ready(self) -> bool:
        """Whether it takes requests."""
        try:
            return self._ask("GET", "/ready").strip() == b"LIVE"
        except Unavailable:
            return False

    def taken(self) -> dict[str, str]:
        """The version that it has taken of each subscription, by the statistic's name."""
        text = self._ask("GET", r"/stats?type=TextReadouts&filter=version_text$").decode()
        pairs = (line.split(": ", 1) for line in text.splitlines() if ": " in line)
        return {name.removesuffix(_TAKEN): value.strip('"') for name, value in pairs}

    def warm_clusters(self) -> frozenset[str]:
        """Clusters whose replicas, those of the newest file, were checked: requests may be sent
        there. One that changes is active as it was until it is warm as it will be."""
        return self._clusters("active") - self.warming_clusters()

    def warming_clusters(self) -> frozenset[str]:
        """Clusters whose newest form is read, and not used yet: some replica is not checked."""
        return self._clusters("warming")

    def _clusters(self, state: str) -> frozenset[str]:
        asked = f"/config_dump?resource=dynamic_{state}_clusters&mask=cluster.name"
        found = json.loads(self._ask("GET", asked)).get("configs", [])
        return frozenset(str(one["cluster"]["name"]) for one in found)

    def healthy(self) -> frozenset[tuple[str, int]]:
        """Addresses that pass their health checks in some cluster."""
        found = set()
        answer = json.loads(self._ask("GET", "/clusters?format=json"))
        for cluster in answer.get("cluster_statuses", []):
            for host in cluster.get("host_statuses", []):
                health: Mapping[str, Any] = host.get("health_status", {})
                if health.get("failed_active_health_check"):
                    continue
                where = host["address"]["socket_address"]
                found.add((str(where["address"]), int(where["port_value"])))
        return frozenset(found)

    def hosts(self) -> list[Host]:
        """Every replica in every cluster: whether it is ejected, and what it has answered."""
        found = []
        answer = json.loads(self._ask("GET", "/clusters?format=json"))
        for cluster in answer.get("cluster_statuses", []):
            for host in cluster.get("host_statuses", []):
                where = host["address"]["socket_address"]
                counts = {one["name"]: int(one.get("value", 0)) for one in host.get("stats", [])}
                found.append(
                    Host(
                        str(cluster["name"]),
                        (str(where["address"]), int(where["port_value"])),
                        bool(host.get("health_status", {}).get("failed_outlier_check")),
                        counts.get("rq_success", 0) + counts.get("rq_error", 0),
                    )
                )
        return found

    def number(self, name: str) -> int:
        """One statistic; 0 if there is none of that name."""
        text = self._ask("GET", f"/stats?filter=^{name}$").decode()
        return sum(int(line.rpartition(": ")[2]) for line in text.splitlines() if ": " in line)

    def drain(self) -> None:
        """Take no new connections; answers tell clients to close theirs."""
        self._ask("POST", "/drain_listeners?graceful&skip_exit")

    def quit(self) -> None:
        self._ask("POST", "/quitquitquit")

    def reopen_logs(self) -> None:
        self._ask("POST", "/reopen_logs")

    def close(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None

    def _ask(self, method: str, path: str) -> bytes:
        try:
            if self._link is None:
                self._link = _Link(self._folder)
            self._link.request(method, path, headers={"Host": "envoy"})
            answer = self._link.getresponse()
            body = answer.read()
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise Unavailable("Envoy does not answer at its own door", why=str(error)) from error
        if answer.status >= 400 and path != "/ready":
            raise Unavailable(
                f"Envoy refused {path}", why=f"{answer.status}: {body[:200].decode()}"
            )
        return body


class _Link(http.client.HTTPConnection):
    """HTTP over the socket in a folder, however long its path is: a socket's name has 107 bytes."""

    def __init__(self, folder: Path) -> None:
        super().__init__("envoy", timeout=ENVOY_ASK_S)
        self._folder = folder

    def connect(self) -> None:
        handle = os.open(self._folder, os.O_PATH | os.O_DIRECTORY)
        try:
            self.sock = socket.socket(socket.AF_UNIX)
            self.sock.settimeout(ENVOY_ASK_S)
            self.sock.connect(f"/proc/self/fd/{handle}/{ADMIN_SOCKET}")
        finally:
            os.close(handle)
