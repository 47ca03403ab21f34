"""The agent's end of one worker's link, for tests that play the agent."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.system.job_certificates import equip
from holdfast.wire import values, worker_messages
from holdfast.wire.orders import Order
from holdfast.wire.reports import Part
from tests.credentials import SECRET


class AgentEnd:
    """Serves the socket in a worker's folder. What it is told to say it says again whenever the
    worker connects; `news` is called when the worker has said something."""

    def __init__(self, folder: Path, news: Callable[[], None] = lambda: None) -> None:
        folder.mkdir()
        equip(folder, SECRET)
        self.folder = folder
        self.said: dict[str, Any] = {}
        self.suspected: set[int] = set()  # all that it has ever named
        self.waited = False  # whether it has ever said that it waits for peers
        self.steps: list[int | None] = []  # what it held, in the order in which it said so
        self.parts: dict[int, tuple[Part, ...] | None] = {}  # attempt -> its share; None: missed
        self._news = news
        self._told: dict[type, bytes] = {}
        self._line: socket.socket | None = None
        self._lock = threading.Lock()
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(worker_messages.socket_path(handle))
        self._listener.listen()
        os.close(handle)
        threading.Thread(target=self._serve, daemon=True).start()

    @property
    def step(self) -> int:
        step = self.said.get("step")
        return -1 if step is None else int(step)

    @property
    def word(self) -> str:
        path = self.folder / worker_messages.WORD_NAME
        return path.read_text() if path.exists() else ""

    def tell(self, order: Order) -> None:
        """Say it now, and again whenever it connects."""
        with self._lock:
            said = self._told[type(order)] = values.order_bytes(order) + b"\n"
            if self._line is not None:
                with contextlib.suppress(OSError):
                    self._line.sendall(said)

    def close(self) -> None:
        self._listener.close()
        if self._line is not None:
            self._line.close()

    def _serve(self) -> None:
        while True:
            try:
                line, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                self._line = line
                for told in self._told.values():
                    line.sendall(told)
            with contextlib.suppress(OSError), line.makefile("rb") as file:
                for raw in file:
                    self._hear(*worker_messages.parse(raw))

    def _hear(self, kind: str, body: dict[str, Any]) -> None:
        if kind == "say":
            self.said = body
            self.suspected |= set(body["suspects"])
            self.waited = self.waited or body["waits"]
            self.steps.append(body["step"])
        else:
            parts = tuple(Part(**part) for part in body["parts"])
            self.parts[body["attempt"]] = None if body["missed"] else parts
        self._news()
