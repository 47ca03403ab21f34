"""The socket of a worker's line to its agent."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from holdfast.wire import talk


def connect(folder: Path, timeout_s: float) -> socket.socket:
    """A line to the agent that listens in this folder; `OSError`: none does."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        line.settimeout(timeout_s)
        line.connect(talk.socket_path(handle))
    except OSError:
        line.close()
        raise
    finally:
        os.close(handle)
    return line
