"""The process that computes a version whose loading runs a pickle: `apart` says why and how.

python -m holdfast.models.apart_process FD
"""

from __future__ import annotations

import json
import os
import select
import socket
import sys
from functools import partial
from pathlib import Path
from typing import Any

from holdfast.models import examples, kinds
from holdfast.models.apart import BAD, FAILED, LOADED, MISSING, TENSORS, receive, send
from holdfast.models.examples import Example
from holdfast.models.records import Version
from holdfast.system.tasks import start_thread
from holdfast.wire import documents
from holdfast.wire.errors import BugError, HoldfastError, MissingExtra


def main() -> None:
    line = socket.socket(fileno=int(sys.argv[1]))
    # Whatever ends it: nobody would end this process.
    watch, gone = partial(_watch, line.fileno()), lambda _error: os._exit(BugError.exit_code)
    start_thread(watch, "watch", gone, lasts="it ends the process")
    try:
        _, task = receive(line)
        servable = _loaded(line, json.loads(task))
        if servable is None:
            return
        while True:
            _, body = receive(line)
            send(line, *_answer(servable, body))
    except (EOFError, OSError):
        return  # whoever asked is gone


def _watch(handle: int) -> None:
    """End with whoever asks, also in the middle of a computation that never ends."""
    poll = select.poll()
    poll.register(handle, select.POLLRDHUP)
    poll.poll()
    os._exit(0)


def _loaded(line: socket.socket, task: dict[str, Any]) -> kinds.Servable | None:
    version = documents.from_document("a version", Version, task["record"])
    folder = Path(task["folder"])
    try:
        servable = kinds.load(version, folder, folder / "code", task["device"], here=True)
    except HoldfastError as error:
        told = {"what": error.what, "why": error.why, "fix": error.fix}
        send(line, MISSING if isinstance(error, MissingExtra) else BAD, json.dumps(told).encode())
        return None
    send(line, LOADED, b"")
    return servable


def _answer(servable: kinds.Servable, body: bytes) -> tuple[bytes, bytes]:
    try:
        given = examples.from_bytes(body)
        return TENSORS, examples.to_bytes(Example({}, servable.predict(given.inputs)), whole=True)
    except Exception as error:  # the model's own: it fails this request
        first = str(error).strip().partition("\n")[0]
        return FAILED, json.dumps({"why": f"{type(error).__name__}: {first}"}).encode()


if __name__ == "__main__":
    main()
