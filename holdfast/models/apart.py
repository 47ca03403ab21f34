"""A version whose loading runs a pickle, computed by a process of its own.

That process has none of the replica's connections, memory or secrets of its environment; it is no
jail: it runs as the same user. What it does to itself (a crash, its end) fails the request that it
computed, with a sentence, and the next request starts it anew. Requests and answers travel over a
socket as frames: a length of eight bytes, and a safetensors file of tensors by name.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from holdfast.models import examples
from holdfast.models.examples import Example
from holdfast.models.records import Version
from holdfast.system import logs
from holdfast.wire import documents
from holdfast.wire.errors import BadModel, MissingExtra, ModelFailed

# Tensors that travel to and from a model in a process of its own, in one piece.
APART_FRAME_BYTES_MAX: Final = 1024 * 1024 * 1024
# Until such a process has loaded its model: as long as a trial may take.
APART_LOAD_S: Final = 300.0
# One that ends is started again no sooner than this after it was started: importing takes a core.
APART_RESTART_S: Final = 2.0
# Between the end of its socket and that of the process.
APART_END_S: Final = 2.0

log = logs.get(__name__)
Array = np.ndarray[Any, Any]
TENSORS, LOADED, BAD, FAILED, MISSING = b"t", b"l", b"b", b"f", b"m"
_LENGTH_BYTES: Final = 8
# Of our environment only what a program needs to find its packages and to bound its threads.
_KEPT: Final = (
    "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "OMP_NUM_THREADS", "PATH", "PYTHONPATH", "TMPDIR",
    "VIRTUAL_ENV",
)  # fmt: skip


class SeparateModel:
    """The replica's end. Loads at once: `BadModel`, `MissingExtra` with what it said."""

    def __init__(self, version: Version, folder: Path, device: str | None) -> None:
        self._version = version
        self._folder = folder
        self._device = device
        self._name = f"{version.model}@{version.number}" if version.number else version.model
        self._busy = threading.Lock()  # one request at a time
        self._line: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._not_before_s = 0.0
        self._start()

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def predict(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        with self._busy:
            if self._line is None:
                self._restart()
            kind, body = self._asked(TENSORS, examples.to_bytes(Example(inputs, {}), whole=True))
        if kind != TENSORS:
            raise ModelFailed(f"{self._name} failed: {json.loads(body)['why']}")
        found = examples.from_bytes(body)
        outputs = {spec.name: found.outputs[spec.name] for spec in self._version.signature.outputs}
        return outputs or dict(found.outputs)

    def close(self) -> None:
        with self._busy:
            self._end()

    # --- private ---------------------------------------------------------------------------------

    def _restart(self) -> None:
        """Not more often than now and then: one that dies at once must not take a core."""
        wait_s = self._not_before_s - time.monotonic()
        if wait_s > 0:
            raise ModelFailed(
                f"the process that computes {self._name} has ended",
                why=f"it is started again in {wait_s:.0f} s at the soonest",
                fix="see the log of the replica",
            )
        log.warning("a model's own process is started again", version=self._name)
        try:
            self._start()
        except BadModel as error:
            raise ModelFailed(f"{self._name} failed: {error.what}", why=error.why) from error

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        self._not_before_s = time.monotonic() + APART_RESTART_S
        command = [sys.executable, "-m", "holdfast.models.apart_process", str(theirs.fileno())]
        environment = {name: os.environ[name] for name in _KEPT if name in os.environ}
        with theirs:
            self._process = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], env=environment, stdin=subprocess.DEVNULL
            )
        self._line = ours
        ours.settimeout(APART_LOAD_S)
        task = {
            "record": documents.document(self._version),
            "folder": str(self._folder),
            "device": self._device,
        }
        try:
            kind, body = self._asked(LOADED, json.dumps(task).encode())
        except ModelFailed as error:
            raise BadModel(f"loading {self._name} ends its process", why=error.why) from error
        ours.settimeout(None)  # whoever waits for an answer watches how long
        if kind == LOADED:
            return
        told = json.loads(body)
        self._end()
        refusal = MissingExtra if kind == MISSING else BadModel
        raise refusal(told["what"], why=told["why"], fix=told["fix"])

    def _asked(self, kind: bytes, body: bytes) -> tuple[bytes, bytes]:
        assert self._line is not None
        try:
            send(self._line, kind, body)
            return receive(self._line)
        except (OSError, EOFError) as error:
            how = self._ended() if not isinstance(error, TimeoutError) else "it took too long"
            self._end()
            raise ModelFailed(
                f"the process that computes {self._name} has ended",
                why=how,
                fix="it is started again with the next request; see the log of the replica",
            ) from error

    def _ended(self) -> str:
        """How, if it has: its socket closes a moment before it can be waited for."""
        assert self._process is not None
        try:
            code = self._process.wait(APART_END_S)
        except subprocess.TimeoutExpired:
            return "it does not answer any more"
        return f"it ended with {'status' if code >= 0 else 'signal'} {abs(code)}"

    def _end(self) -> None:
        if self._line is not None:
            self._line.close()
            self._line = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def send(line: socket.socket, kind: bytes, body: bytes) -> None:
    """One frame; `ValueError` for one that the other side would not take."""
    if len(body) > APART_FRAME_BYTES_MAX:
        raise ModelFailed(
            f"{len(body)} bytes of tensors are too many for a model in a process of its own",
            why=f"{APART_FRAME_BYTES_MAX} at most",
            fix="send fewer rows at once",
        )
    line.sendall(len(body).to_bytes(_LENGTH_BYTES, "little") + kind + body)


def receive(line: socket.socket) -> tuple[bytes, bytes]:
    """The next frame; `EOFError` if there is none any more."""
    head = _exactly(line, _LENGTH_BYTES + 1)
    length = int.from_bytes(head[:_LENGTH_BYTES], "little")
    if length > APART_FRAME_BYTES_MAX:
        raise EOFError(f"a frame of {length} bytes")
    return head[_LENGTH_BYTES:], _exactly(line, length)


def _exactly(line: socket.socket, count: int) -> bytes:
    held = bytearray()
    while len(held) < count:
        piece = line.recv(min(count - len(held), 1 << 20))
        if not piece:
            raise EOFError("the other side is gone")
        held += piece
    return bytes(held)
