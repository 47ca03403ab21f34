"""Our broker, started as its users start it, and a client that speaks to it in bare messages."""

from __future__ import annotations

import socket
import struct
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from holdfast.topics.broker.protocol import apis
from holdfast.topics.broker.protocol.apis import Api
from holdfast.topics.broker.protocol.cluster import ApiVersionsRequest
from tests.servers.process import ServerProcess

CALL_S = 60.0


class Wire:
    """One connection; each call is one request in the version that is asked for."""

    def __init__(self, hosts: str, client_id: str | None = "test") -> None:
        host, _, port = hosts.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=CALL_S)
        self.client_id = client_id
        self._correlation = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, api: Api, version: int, request: object) -> int:
        self._correlation += 1
        self.socket.sendall(
            apis.encode_request(api, version, self._correlation, self.client_id, request)
        )
        return self._correlation

    def receive(self, api: Api, version: int) -> Any:
        """The next answer; `EOFError`: the other side has ended the connection."""
        (size,) = struct.unpack("!i", self.read(4))
        correlation, response = apis.decode_response(api, version, self.read(size))
        assert correlation <= self._correlation
        return response

    def call(self, api: Api, version: int, request: object) -> Any:
        self.send(api, version, request)
        return self.receive(api, version)

    def read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            chunk = self.socket.recv(size - len(data))
            if not chunk:
                raise EOFError("the connection has ended")
            data += chunk
        return data

    def is_closed(self) -> bool:
        """Wait for the other side to end the connection; whether it did without a word."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True


class BrokerServer(ServerProcess):
    """`python -m holdfast.topics.broker` over `folder/data`."""

    def __init__(self, folder: Path, port: int | None = None, options: Sequence[str] = ()) -> None:
        super().__init__(folder, port)
        self.options = tuple(options)

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def command(self) -> Sequence[str]:
        where = ["--data", str(self.data), "--listen", self.hosts]
        return [sys.executable, "-m", "holdfast.topics.broker", *where, *self.options]

    def ready(self) -> bool:
        try:
            with Wire(self.hosts) as wire:
                return bool(wire.call(apis.API_VERSIONS, 0, ApiVersionsRequest()).api_keys)
        except (OSError, EOFError):
            return False

    def wire(self) -> Wire:
        return Wire(self.hosts)
