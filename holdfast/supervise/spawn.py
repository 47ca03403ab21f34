"""Starting a process of a cluster: detached, in a session of its own, its output in its log."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from holdfast.system import disk
from holdfast.system.process import PART_VARIABLE

# A log of a process is put aside at its start when it is longer than this; one older is kept.
PROCESS_LOG_BYTES_MAX: Final = 16 * 1024 * 1024


def spawn(
    folder: Path,
    command: Sequence[str],
    log: Path,
    environment: Mapping[str, str],
    *,
    stdin: int = subprocess.DEVNULL,
    handles: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start it over the cluster's folder. `handles`: those of our files that it shall have too.

    Until it has written its record, a variable in its environment tells to whom it belongs.
    """
    log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if log.exists() and log.stat().st_size > PROCESS_LOG_BYTES_MAX:
        log.replace(log.with_suffix(".log.1"))
    with disk.private(log, "ab") as output:
        return subprocess.Popen(
            command,
            stdin=stdin,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd="/",
            env={**environment, PART_VARIABLE: str(folder)},
            # Ctrl-C in the terminal of its starter is for the starter.
            start_new_session=True,
            pass_fds=handles,
        )


def environment() -> dict[str, str]:
    """Ours, with this very package first on the path, wherever it was imported from."""
    root = str(Path(__file__).resolve().parents[2])
    known = os.environ.get("PYTHONPATH")
    words = [root, known] if known else [root]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(words))}


def log_bytes(log: Path) -> int:
    """How long the log is that the next process of this log goes on with."""
    try:
        size = log.stat().st_size
    except OSError:
        return 0
    return size if size <= PROCESS_LOG_BYTES_MAX else 0


def last_words(log: Path, lines: int, after_bytes: int = 0) -> str:
    """The end of what was written there; `after_bytes`: by one that found it so long."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, after_bytes, log.stat().st_size - 16_384))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.strip().splitlines()[-lines:])
