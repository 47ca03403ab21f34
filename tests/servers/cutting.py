"""A proxy on loopback that cuts a connection in the middle of an answer."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Self


class CuttingProxy:
    """Passes bytes between clients and a server, until it is told to cut."""

    def __init__(self, port: int) -> None:
        self._server_port = port
        self._lock = threading.Lock()
        self._cut_after: int | None = None
        self.cuts = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._links: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    def cut_next_answer(self, after_bytes: int = 0) -> None:
        """Let so many bytes of answers pass, then close that connection."""
        with self._lock:
            self._cut_after = after_bytes

    def __enter__(self) -> Self:
        self._begin(self._accept)
        return self

    def __exit__(self, *exc: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for link in self._links:
            _close(link)
        for thread in self._threads:
            thread.join(10)

    def _begin(self, target: object, *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._server_port))
            self._links += [client, server]
            self._begin(self._pass, client, server, False)
            self._begin(self._pass, server, client, True)

    def _pass(self, source: socket.socket, sink: socket.socket, answers: bool) -> None:
        try:
            while data := source.recv(65_536):
                if answers and self._is_cut(len(data)):
                    break
                sink.sendall(data)
        except OSError:
            return
        finally:
            _close(source)
            _close(sink)

    def _is_cut(self, size: int) -> bool:
        with self._lock:
            if self._cut_after is None:
                return False
            self._cut_after -= size
            if self._cut_after >= 0:
                return False
            self._cut_after = None
            self.cuts += 1
            return True


def _close(link: socket.socket) -> None:
    with contextlib.suppress(OSError):
        link.shutdown(socket.SHUT_RDWR)
    link.close()
