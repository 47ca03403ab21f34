"""The last knowledge, on disk: a gateway that starts while the plane is away serves from it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from holdfast.serve.gateway.state import Known
from holdfast.wire import documents, logs
from holdfast.wire.errors import Corrupt

_FILE: Final = "knowledge.json"

log = logs.get(__name__)


@dataclass(frozen=True, slots=True)
class Memory:
    """What was known, and when that was the present."""

    at_s: float
    services: tuple[Known, ...] = ()


def remember(folder: Path, memory: Memory) -> None:
    draft = folder / f"{_FILE}.tmp"
    with draft.open("wb") as file:
        file.write(documents.to_bytes(memory))
        file.flush()
        os.fsync(file.fileno())
    draft.replace(folder / _FILE)


def recall(folder: Path) -> Memory | None:
    """What was remembered last; None: nothing, or what this version does not understand."""
    path = folder / _FILE
    try:
        return documents.from_bytes(str(path), Memory, path.read_bytes())
    except FileNotFoundError:
        return None
    except Corrupt as error:
        log.warning(
            "the last knowledge cannot be read; the plane's is waited for", reason=str(error)
        )
        return None
