"""Lines of JSON in a file, each flushed: what was told survives whoever wrote it down."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any


class Record:
    """Appends lines. Thread-safe."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        # One that was killed may have left half a line: it must not spoil the next one.
        torn = path.exists() and path.read_bytes()[-1:] not in (b"\n", b"")
        self._file = path.open("a")
        if torn:
            self._file.write("\n")

    def write(self, **fields: Any) -> None:
        line = json.dumps(fields) + "\n"
        with self._lock:
            self._file.write(line)
            self._file.flush()
