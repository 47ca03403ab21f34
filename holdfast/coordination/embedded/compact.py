"""Snapshots, made by another process so that nothing here waits for them.

The process (`python -m holdfast.coordination.embedded.compact FOLDER UPTO_ZXID ...`) loads the
newest snapshot, replays the closed segments after it, writes the result beside its final name,
reads it back and compares, and only then gives it its name. So every snapshot also verifies the
log that it replaces. Last it removes what no kept snapshot needs.

When its server dies it finishes the snapshot all the same: a server that is killed again and again
would otherwise never have one, and replay an ever longer log. But it removes nothing then, since
the next server may be reading. It knows by its standard input, a pipe whose other end is the
server's. It holds `compacting` as long as it lives, so that there is one at a time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from holdfast.coordination.embedded import folder as files
from holdfast.coordination.embedded.recovery import (
    load_snapshot,
    replay_log,
    without_collector,
)
from holdfast.coordination.embedded.snapshot import publish_snapshot
from holdfast.system import logs
from holdfast.system.readable import await_readable
from holdfast.wire.errors import BugError, HoldfastError
from holdfast.wire.limits import TRIMMING_S

log = logs.get(__name__)
_ROOT: Final = Path(__file__).resolve().parents[3]
_NICENESS: Final = 10


def compact(folder: Path, upto_zxid: int, nodes_max: int, snapshots_kept: int) -> dict[str, object]:
    """Write the snapshot of the closed segments' end, verified, and remove what is not needed.

    Nothing is removed once our server, at the other end of standard input, is gone.
    """
    started_s = time.monotonic()
    with without_collector():
        listing = files.list_folder(folder)
        state, _ = load_snapshot(listing, nodes_max)
        replay_log(folder, listing, state, closed_only=True)
        # More may have been closed since we were started.
        zxid = state.tree.last_zxid
        if zxid < upto_zxid:
            raise BugError(f"the closed segments end at {zxid:#x}, before {upto_zxid:#x}")
        path = publish_snapshot(folder, state.tree, state.time_ms)
    with files.exclusively(folder / files.TRIMMING, TRIMMING_S):
        removed = trim(folder, snapshots_kept) if _server_lives() else []
    return {
        "snapshot": path.name,
        "zxid": zxid,
        "records": state.records,
        "bytes": path.stat().st_size,
        "removed": removed,
        "seconds": round(time.monotonic() - started_s, 3),
    }


def trim(folder: Path, snapshots_kept: int) -> list[str]:
    """Remove older snapshots, and the segments that even the oldest kept one does not need."""
    listing = files.list_folder(folder)
    if len(listing.snapshots) < snapshots_kept:
        return []
    doomed = [path for _, path in listing.snapshots[:-snapshots_kept]]
    oldest_zxid = listing.snapshots[-snapshots_kept][0]
    following = listing.segments[1:]
    # In the order of age: whatever moment a crash chooses, what is left has no gap.
    doomed += [
        path
        for (_, path), (next_zxid, _) in zip(listing.segments, following, strict=False)
        if next_zxid <= oldest_zxid + 1
    ]
    # Not synced: what comes back after a crash is good, and goes the next time.
    for path in doomed:
        files.remove(path)
    return [path.name for path in doomed]


class Compactor:
    """The server's side: starts the process, asks how it went, never waits for it."""

    def __init__(self, folder: Path, *, nodes_max: int, snapshots_kept: int) -> None:
        self.taken = 0
        self.failures = 0
        self.last_s = 0.0
        self.last_zxid = 0
        self.last_error = ""
        self._folder = folder
        self._options = (str(nodes_max), str(snapshots_kept))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def busy(self) -> bool:
        """Whether a snapshot is being made, by our process or by one that outlived its server."""
        return self._process is not None or files.is_locked(self._folder / files.COMPACTING)

    @property
    def pid(self) -> int | None:
        """The number of the process that is at work, if one is."""
        return self._process.pid if self._process else None

    def start(self, upto_zxid: int) -> None:
        """Start the process. A machine that cannot start one is a failure like others."""
        assert self._process is None
        module = "holdfast.coordination.embedded.compact"
        command = [sys.executable, "-m", module, str(self._folder), str(upto_zxid), *self._options]
        paths = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
                # Not reached by Ctrl-C, yet in our session: in one of its own, niceness counts
                # for nothing where Linux schedules by session.
                process_group=0,
            )
        except OSError as error:
            self._fail(str(error))

    def collect(self) -> None:
        """Take note of how the process ended, if it did."""
        process = self._process
        if process is None or process.poll() is None:
            return
        said, complained = process.communicate()
        self._process = None
        if process.returncode == 0:
            report = json.loads(said)
            self.taken += 1
            self.last_s = report["seconds"]
            self.last_zxid = report["zxid"]
            self.last_error = ""
            log.info("snapshot taken", **report)
            return
        reason = complained.decode("utf-8", "replace").strip()
        self._fail(reason or f"the process ended with {process.returncode}")

    def _fail(self, reason: str) -> None:
        self.failures += 1
        if reason != self.last_error:
            # Once for a reason: it is tried again after every roll.
            log.error("no snapshot could be made; the log is kept and grows", why=reason)
        self.last_error = reason

    def stop(self) -> None:
        """End our process, whatever it is doing."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def _server_lives() -> bool:
    """Whether the other end of standard input is still open: nobody ever writes to it."""
    return not await_readable([0], 0.0)


def main(arguments: list[str]) -> int:
    """The process. Prints its report as JSON, or the reason of its failure."""
    folder, numbers = Path(arguments[0]), [int(number) for number in arguments[1:]]
    os.nice(_NICENESS)
    try:
        lock = files.take_lock(folder / files.COMPACTING)
        try:
            report = compact(folder, *numbers)
        finally:
            os.close(lock)
    except (HoldfastError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(json.dumps(report))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
