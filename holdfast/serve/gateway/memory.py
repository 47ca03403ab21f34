"""The last knowledge, on disk: a gateway that starts while the plane is away serves from it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from holdfast.serve.gateway.state import Known
from holdfast.wire import disk, documents, logs
from holdfast.wire.errors import Corrupt

_FILE: Final = "knowledge.json"

log = logs.get(__name__)


@dataclass(frozen=True, slots=True)
class Memory:
    """What was known, and when that was the present."""

    at_s: float
    services: tuple[Known, ...] = ()


def remember(folder: Path, memory: Memory) -> None:
    """Durably: whoever is told of it afterwards may count on it. `Full`: what was remembered last
    still is."""
    disk.replace_durably(folder / _FILE, documents.to_bytes(memory))


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
