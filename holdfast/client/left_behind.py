"""Looking at a cluster that is down: at a copy of what its coordination server has left.

A private server is started over the copy and ended with the look, so nothing of the cluster is
changed or started, and whoever starts it meanwhile does not notice. Of a look that is killed the
server ends by itself.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from holdfast.client.private_server import server_over
from holdfast.coordination import Session, connect
from holdfast.wire.limits import CONNECT_TIMEOUT_S, SERVER_START_S

# What belongs to a server that lives, or to whoever starts one.
_NOT_STATE: Final = ("ended", "lock", "server.json", "server.log", "starting", "trimming")
_LOG: Final = "log-*"


def left_s(folder: Path) -> float | None:
    """When the server over this folder last wrote; None: there never was one."""
    written = [path.stat().st_mtime for path in folder.glob(_LOG)]
    return max(written, default=None)


@contextmanager
def session_over(folder: Path, scratch: Path) -> Iterator[Session]:
    """A session with a private server over a copy of `folder`, which is made in `scratch`.
    `BlockingIOError`: a server has taken the folder meanwhile."""
    with tempfile.TemporaryDirectory(prefix="look-", dir=scratch) as private:
        data = Path(private) / "coordination"
        _copy(folder, data)
        deadline_s = time.monotonic() + SERVER_START_S
        with (
            server_over(data, deadline_s) as address,
            connect(
                f"zk://{address}?secret_file={data}/access", timeout_s=CONNECT_TIMEOUT_S
            ) as session,
        ):
            yield session


def _copy(folder: Path, data: Path) -> None:
    """With the folder's lock shared: while it is, no server begins to write there."""
    handle = os.open(folder / "lock", os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        shutil.copytree(folder, data, ignore=shutil.ignore_patterns(*_NOT_STATE))
        data.chmod(0o700)
    finally:
        os.close(handle)
