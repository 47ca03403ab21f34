"""A coordination server of one's own over a folder: ended with whoever needs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from holdfast.wire.errors import TerminalError, Unavailable

# If this process is killed before it ends the server, the server ends by itself.
LINGER_S: Final = 5


@contextmanager
def server_over(data: Path, deadline: float) -> Iterator[str]:
    """The address of a server over this folder, which is killed at the end."""
    command = [sys.executable, "-m", "holdfast.coordination.embedded"]
    server = subprocess.Popen(
        [*command, "--data", str(data), "--listen", "127.0.0.1:0", "--linger", str(LINGER_S)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=_environment(),
    )
    try:
        yield _address_of(server, data, deadline)
    finally:
        server.kill()
        server.communicate()


def _address_of(server: subprocess.Popen[bytes], data: Path, deadline: float) -> str:
    while time.monotonic() < deadline:
        if server.poll() is not None:
            written = server.communicate()[1].decode(errors="replace").strip().splitlines()
            raise TerminalError(
                "the embedded server ended while it started",
                why=written[-1] if written else f"exit code {server.returncode}",
                fix="holdfast coord serve --data ./coord",
            )
        try:
            return str(json.loads((data / "server.json").read_text())["address"])
        except FileNotFoundError:
            time.sleep(0.01)
    raise Unavailable(
        "the embedded server did not listen in time",
        why="this machine is slow, or very busy",
        fix="holdfast --log-level debug coord serve --data ./coord",
    )


def _environment() -> dict[str, str]:
    """Ours, with this very package first on the path, wherever it was imported from."""
    root = str(Path(__file__).resolve().parents[2])
    return {**os.environ, "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])}
