"""The prediction log: what was asked and answered, as JSON lines in the worker's folder of logs.

    {"at": 1712.5, "id": "...", "model": "digits", "version": 3, "variant": "stable", "region":
    "eu",
     "ms": 0.8, "cached": false, "digest": "...", "inputs": {...}, "outputs": {...}}

A thread writes; a request only puts itself into a queue. When the queue is full, or the disk does
not take it, the line is dropped and counted: a log never slows or fails an answer. Of large tensors
the first elements are written; the digest is of all inputs. Of an input that is redacted neither
has anything but its shape. To a topic goes what `prediction_topic` says.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Collection, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import IO, Any, Final

import msgspec

from holdfast.serve.protocol.tensors import Array, InferAnswer, InferRequest, as_bytes, feed
from holdfast.system import logs
from holdfast.system.retries import Retries
from holdfast.system.tasks import start_thread
from holdfast.wire.limits import PREDICTIONS_FILE_BYTES_MAX, PREDICTIONS_FILES_KEPT

# Predictions that wait to be written down: a tenth of a second of the fastest replica.
PREDICTIONS_WAITING_MAX: Final = 4_096
PREDICTIONS_WAITING_BYTES_MAX: Final = 64 * 1024 * 1024
# What waits is written before a replica ends, unless the disk hangs.
PREDICTIONS_CLOSE_S: Final = 5.0
# Lines reach the file after this at the latest, many at once.
PREDICTIONS_FLUSH_S: Final = 0.1
# Lines that are written in one piece: a file is at most so much larger than its bound.
PREDICTIONS_BATCH_MAX: Final = 256
# Elements of each tensor in a line, and characters of a text.
PREDICTIONS_ELEMENTS_MAX: Final = 64
PREDICTIONS_TEXT_CHARACTERS_MAX: Final = 200

FILE: Final = "predictions.jsonl"
_DIGEST_BYTES: Final = 16
_encode: Final = msgspec.json.Encoder().encode

log = logs.get(__name__)

_Noted = tuple[float, InferRequest, InferAnswer, float, int]


class PredictionLog:
    """Lines into `folder/predictions.jsonl`; a full file is set aside as `.1`, the oldest goes."""

    def __init__(
        self,
        folder: Path,
        *,
        file_bytes_max: int = PREDICTIONS_FILE_BYTES_MAX,
        waiting_max: int = PREDICTIONS_WAITING_MAX,
        flush_s: float = PREDICTIONS_FLUSH_S,
    ) -> None:
        self.redact: tuple[str, ...] = ()  # inputs whose values nobody writes down
        self.path = folder / FILE
        self.written = 0
        self.dropped = 0
        self._file_bytes_max = file_bytes_max
        self._flush_s = flush_s
        self._queue: queue.Queue[_Noted | None] = queue.Queue(waiting_max)
        self._file: IO[bytes] | None = None
        self._size = 0
        self._said = False
        # Counted by whoever notes, and by the thread: what waits is the difference.
        self._taken_bytes = 0
        self._done_bytes = 0
        self._retries = Retries("writing down predictions")
        self._thread = start_thread(self._run, "predictions")

    def note(self, request: InferRequest, answer: InferAnswer, ms: float) -> None:
        """Write this down, soon. The arrays must not change any more."""
        size = sum(array.nbytes for array in (*request.inputs.values(), *answer.outputs.values()))
        if self._taken_bytes - self._done_bytes + size > PREDICTIONS_WAITING_BYTES_MAX:
            self.dropped += 1
            return
        try:
            self._queue.put_nowait((time.time(), request, answer, ms, size))
        except queue.Full:
            self.dropped += 1
        else:
            self._taken_bytes += size

    def close(self) -> None:
        """Write what waits, and end. A disk that hangs is not waited for."""
        try:
            self._queue.put(None, timeout=PREDICTIONS_CLOSE_S)
        except queue.Full:
            return
        self._thread.join(PREDICTIONS_CLOSE_S)

    # --- the thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        going = True
        while going:
            noted = self._queue.get()
            due_s = time.monotonic() + self._flush_s
            lines: list[bytes] = []
            while noted is not None:
                self._take(noted, lines)
                try:
                    noted = self._queue.get(timeout=max(0.0, due_s - time.monotonic()))
                except queue.Empty:
                    break
                if len(lines) >= PREDICTIONS_BATCH_MAX:
                    self._write(lines)
                    lines = []
            else:
                going = False
            self._write(lines)
        if self._file is not None:
            self._file.close()

    def _take(self, noted: _Noted, lines: list[bytes]) -> None:
        at_s, request, answer, ms, size = noted
        self._done_bytes += size
        try:
            lines.append(line_of(at_s, request, answer, ms, self.redact))
        except (TypeError, ValueError) as error:  # an array of what JSON does not know
            self.dropped += 1
            log.debug("a prediction cannot be written down", error=str(error))
        except Exception as error:  # a bug of ours: it costs this line, and no answer
            self.dropped += 1
            self._retries.failed(error)
        else:
            self._retries.well()

    def _write(self, lines: list[bytes]) -> None:
        if not lines:
            return
        try:
            self._append(b"".join(lines))
        except OSError as error:
            self.dropped += len(lines)
            self._file = None
            if not self._said:
                log.warning(
                    "predictions cannot be written down", path=str(self.path), error=str(error)
                )
            self._said = True
        else:
            self.written += len(lines)
            self._said = False

    def _append(self, data: bytes) -> None:
        if self._size and self._size + len(data) > self._file_bytes_max and self._file is not None:
            self._file.close()
            self._file = None
            self._set_aside()
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("ab", buffering=0)
            self._size = self._file.tell()
        self._file.write(data)
        self._size += len(data)

    def _set_aside(self) -> None:
        for number in range(PREDICTIONS_FILES_KEPT - 1, 0, -1):
            older = self._aside(number)
            if older.exists():
                older.replace(self._aside(number + 1))
        self.path.replace(self._aside(1))

    def _aside(self, number: int) -> Path:
        return self.path.with_name(f"{FILE}.{number}")


def line_of(
    at_s: float,
    request: InferRequest,
    answer: InferAnswer,
    ms: float,
    redact: Collection[str] = (),
) -> bytes:
    """The line of a prediction."""
    variant = request.variant[:PREDICTIONS_TEXT_CHARACTERS_MAX]
    shown = {name: array for name, array in request.inputs.items() if name not in redact}
    fields = {
        "at": round(at_s, 6),
        "id": (answer.id or request.trace)[:PREDICTIONS_TEXT_CHARACTERS_MAX],
        "model": answer.model,
        "version": answer.version,
        "variant": variant,
        "arm": variant,  # what it was called, for one release
        "region": request.region[:PREDICTIONS_TEXT_CHARACTERS_MAX],
        "ms": round(ms, 3),
        "cached": answer.cached,
        "digest": digest_of(shown),
        "inputs": {
            name: _shown(array) if name in shown else {"shape": array.shape, "redacted": True}
            for name, array in request.inputs.items()
        },
        "outputs": {name: _shown(array) for name, array in answer.outputs.items()},
    }
    return _encode(fields) + b"\n"


def digest_of(inputs: Mapping[str, Array]) -> str:
    """Equal for equal inputs, in whatever order they came."""
    digest = blake2b(digest_size=_DIGEST_BYTES)
    feed(digest, inputs)
    return digest.hexdigest()


def _shown(array: Array) -> dict[str, Any]:
    """A tensor's shape and its first elements."""
    values = array.reshape(-1)[:PREDICTIONS_ELEMENTS_MAX].tolist()
    if array.dtype == object:
        values = [
            as_bytes(value)[:PREDICTIONS_TEXT_CHARACTERS_MAX].decode(errors="replace")
            for value in values
        ]
    return {"shape": array.shape, "data": values}
