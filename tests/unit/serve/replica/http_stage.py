"""A replica's HTTP server over a real engine, in a thread, and clients that are plain sockets."""

from __future__ import annotations

import asyncio
import json
import math
import socket
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self, TypeVar
from unittest.mock import patch

import numpy as np
import uvloop

from holdfast.models.records import ModelKind, Signature, TensorSpec, Version
from holdfast.serve.records import Limits, ServiceSpec
from holdfast.serve.replica import batching
from holdfast.serve.replica.batching import BatchPace, Outputs
from holdfast.serve.replica.engine import Engine
from holdfast.serve.replica.http import App
from holdfast.serve.replica.listening import Listener
from tests.answers import HttpAnswer
from tests.waiting import PATIENCE_S, eventually

WIDTH = 4
SIGNATURE = Signature(
    (TensorSpec("x", "FP32", (-1, WIDTH)),), (TensorSpec("y", "FP32", (-1, WIDTH)),)
)
# The versions of the stage, each with a pace of its own. All double.
INSTANT, SHORT, LONG = 1, 2, 3
T = TypeVar("T")


class Client:
    """One connection."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self.socket.makefile("rb")

    def send(self, data: bytes) -> Self:
        self.socket.sendall(data)
        return self

    def read(self, *, bodiless: bool = False) -> HttpAnswer:
        """The next answer; `EOFError` if the connection ends before."""
        line = self._file.readline()
        if not line:
            raise EOFError
        assert line.startswith(b"HTTP/1.1 "), line
        headers = {}
        while (each := self._file.readline()) != b"\r\n":
            name, _, value = each.decode("latin-1").partition(":")
            headers[name.lower()] = value.strip()
        size = 0 if bodiless else int(headers.get("content-length", "0"))
        return HttpAnswer(int(line[9:12]), headers, self._file.read(size))

    def ask(self, data: bytes) -> HttpAnswer:
        return self.send(data).read()

    def ends(self) -> bool:
        """Whether nothing more comes."""
        try:
            return self._file.read(1) == b""
        except ConnectionResetError:
            return True

    def close(self) -> None:
        self._file.close()
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()


class HttpStage:
    """The server. What is long is computed when the `gate` is open."""

    def __init__(self, *, limits: Limits | None = None, **listener: Any) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.computed = 0  # by the long version
        self._limits = limits or Limits()
        self._options = listener
        self._ready = threading.Event()
        self.loop: asyncio.AbstractEventLoop
        self.listener: Listener
        self._end: asyncio.Event
        self._thread = threading.Thread(target=lambda: uvloop.run(self._main()))
        # However slow the machine is, versions compute where this stage has put them.
        self._steady = patch.multiple(batching, INLINE_STALL_S=math.inf, INLINE_LATE_S=math.inf)

    def __enter__(self) -> Self:
        self._steady.start()
        self._thread.start()
        assert self._ready.wait(PATIENCE_S)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.gate.set()
        self.loop.call_soon_threadsafe(self._end.set)
        self._thread.join(PATIENCE_S)
        self._steady.stop()
        assert not self._thread.is_alive()

    async def _main(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._end = asyncio.Event()
        self.engine = Engine(
            ServiceSpec("s", "m", "prod", limits=self._limits), worker=5, region="eu"
        )
        for number, pace, predict in (
            (INSTANT, BatchPace.INSTANT, _double),
            (SHORT, BatchPace.SHORT, _double),
            (LONG, BatchPace.LONG, self._double_slowly),
        ):
            record = Version(
                "m", number, ModelKind.FUNCTION, SIGNATURE, {}, f"sha256:{number}", 0.0
            )
            self.engine.install(record, predict, batches=True, pace=pace)
        self.engine.stable = INSTANT
        self.app = App(self.engine)
        self.listener = Listener(self.app, "127.0.0.1", 0, **self._options)
        await self.listener.start()
        self.port = self.listener.port
        self._ready.set()
        await self._end.wait()
        await self.listener.stop(0.0)
        for held in self.engine.versions.values():
            await held.batcher.close(PATIENCE_S)

    def _double_slowly(self, inputs: Mapping[str, Any]) -> Outputs:
        assert self.gate.wait(PATIENCE_S)
        self.computed += 1
        return _double(inputs)

    def client(self) -> Client:
        return Client(self.port)

    def inside(self, what: Callable[[], T]) -> T:
        """What this gives in the server's own thread."""

        async def called() -> T:
            return what()

        return asyncio.run_coroutine_threadsafe(called(), self.loop).result(PATIENCE_S)

    def stop(self, wait_s: float = PATIENCE_S) -> Future[None]:
        """Let the server end; done when it has."""
        return asyncio.run_coroutine_threadsafe(self.listener.stop(wait_s), self.loop)

    @property
    def unanswered(self) -> tuple[int, int]:
        """Requests that the application has, and those that versions were chosen for."""
        held = self.engine.versions.values()
        return self.app.active, sum(each.chosen for each in held)

    def is_quiet(self) -> bool:
        """Whether nothing is left of any request or connection."""
        return self.inside(
            lambda: (*self.unanswered, *self.listener.load, self.app.bodies) == (0, 0, 0, 0, 0)
        )

    def answers(self) -> None:
        """It still does."""
        with self.client() as client:
            said = client.ask(predict(7.0))
            assert (said.status, said.json) == (200, {"y": [14.0] * WIDTH})
        eventually(self.is_quiet, "nothing is left of what was asked")


def _double(inputs: Mapping[str, Any]) -> Outputs:
    return {"y": inputs["x"] * np.float32(2)}


def request(
    method: str = "GET", path: str = "/v2", body: bytes | None = None, **headers: Any
) -> bytes:
    """A request; `x_y` among the headers is `x-y`."""
    lines = [f"{method} {path} HTTP/1.1", "host: test"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    if body is not None and not {"transfer_encoding", "content_length"} & headers.keys():
        lines.append(f"content-length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + (body or b"")


def predict(value: float, version: int = INSTANT, **headers: str) -> bytes:
    """A request for one row of this value."""
    body = json.dumps([value] * WIDTH).encode()
    return request("POST", "/predict/m", body, x_holdfast_version=str(version), **headers)


def chunked(*pieces: bytes, after: bytes = b"") -> bytes:
    """A body in chunks; `after` are trailers."""
    parts = [b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces]
    return b"".join([*parts, b"0\r\n", after, b"\r\n"])
