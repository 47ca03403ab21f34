"""What makes writes durable: the log, the snapshots, and recovery, behind one class.

`Store.open` recovers a folder and holds it. `commit` and `maintain` are called by one thread, the
writer's; the event loop never waits for the disk.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from holdfast.coordination.embedded import folder as files
from holdfast.coordination.embedded.appender import Appender
from holdfast.coordination.embedded.compact import Compactor
from holdfast.coordination.embedded.records import zxid_and_time
from holdfast.coordination.embedded.recovery import RecoveredStore, recover
from holdfast.system import logs
from holdfast.system.disk import NO_ROOM, make_folder
from holdfast.wire.errors import BugError, DiskFailed
from holdfast.wire.limits import NODES_MAX, SEGMENT_BYTES_MAX, SNAPSHOT_TRANSACTIONS, TRIMMING_S

# The last good one and one before it, with the log between them.
SNAPSHOTS_KEPT: Final = 2
# Without room for a new segment the old one goes on; asking more often would not make room.
ROLL_RETRY_S: Final = 5.0

log = logs.get(__name__)


class RecoveryReport(NamedTuple):
    """How a folder was recovered. `snapshot` is "" when there was none."""

    snapshot: str
    records_replayed: int
    bytes_cut: int
    seconds: float


class Store:
    """A data folder in use. Made by `Store.open`."""

    def __init__(
        self,
        folder: Path,
        lock: int,
        secret: bytes,
        recovered: RecoveredStore,
        *,
        segment_bytes: int,
        snapshot_transactions: int,
        snapshots_kept: int,
        nodes_max: int,
    ) -> None:
        self.folder = folder
        self.secret = secret
        self.tree = recovered.tree
        self.last_zxid = recovered.tree.last_zxid
        self.last_time_ms = recovered.time_ms
        self.recovery = RecoveryReport("", 0, 0, 0.0)
        self._lock = lock
        self._segment_bytes = segment_bytes
        self._snapshot_transactions = snapshot_transactions
        self._since_snapshot = recovered.records
        self._nodes_max = nodes_max
        self._roll_after_s = 0.0
        self._to_compact = 0
        self._broken: DiskFailed | None = None
        tail = recovered.tail
        if tail is None:
            self._appender = Appender.create(folder, self.last_zxid + 1, nodes_max)
        else:
            self._appender = Appender(tail.path, tail.header, tail.end, tail.chain, self.last_zxid)
            if tail.header.nodes_max != nodes_max:
                self._appender = self._appender.follow(self.last_zxid + 1, nodes_max)
        self.compactor = Compactor(folder, nodes_max=nodes_max, snapshots_kept=snapshots_kept)

    @classmethod
    def open(
        cls,
        folder: Path,
        *,
        nodes_max: int = NODES_MAX,
        segment_bytes: int = SEGMENT_BYTES_MAX,
        snapshot_transactions: int = SNAPSHOT_TRANSACTIONS,
        snapshots_kept: int = SNAPSHOTS_KEPT,
    ) -> Store:
        """Take the folder for this process (`Occupied` if another has it) and recover it.

        A torn tail is cut; any other damage is refused as `Corrupt`; a folder that cannot be
        written is `Refused`.
        """
        started_s = time.monotonic()
        lock = -1
        try:
            make_folder(folder, 0o700)
            lock = files.take_lock(folder / files.LOCK)
            with files.exclusively(folder / files.TRIMMING, TRIMMING_S):
                _remove_unfinished(folder)
                recovered = recover(folder, nodes_max=nodes_max)
            secret = _secret(folder, is_new=recovered.tail is None)
            store = cls(
                folder,
                lock,
                secret,
                recovered,
                segment_bytes=segment_bytes,
                snapshot_transactions=snapshot_transactions,
                snapshots_kept=snapshots_kept,
                nodes_max=nodes_max,
            )
        except BaseException as error:
            if lock >= 0:
                os.close(lock)
            if isinstance(error, OSError):
                raise files.explain(error, folder) from error
            raise
        store._report(recovered, time.monotonic() - started_s)
        return store

    def _report(self, recovered: RecoveredStore, seconds: float) -> None:
        tail, snapshot = recovered.tail, recovered.snapshot
        cut = tail.cut_bytes if tail else 0
        self.recovery = RecoveryReport(
            snapshot.name if snapshot else "", recovered.records, cut, seconds
        )
        for warning in recovered.warnings:
            log.warning(warning)
        if tail and cut:
            log.warning(
                "the log's last batch was incomplete and is cut: it was never acknowledged",
                file=str(tail.path),
                offset=tail.end,
                bytes=cut,
            )

    def commit(self, records: Sequence[bytes], last_zxid: int) -> None:
        """Make these records durable, all or none.

        `Full`: none is kept, and a later call may succeed. `DiskFailed`: the disk is not to be
        trusted any more, and every later call fails too.
        """
        if self._broken is not None:
            raise self._broken
        first_zxid = self.last_zxid + 1
        if (
            not records
            or last_zxid - self.last_zxid != len(records)
            or zxid_and_time(records[0])[0] != first_zxid
        ):
            raise BugError(
                f"a batch of {len(records)} up to zxid {last_zxid:#x} does not follow"
                f" {self.last_zxid:#x}"
            )
        try:
            self._appender.append(b"".join(records), first_zxid, last_zxid)
        except DiskFailed as error:
            self._broken = error
            raise
        self._since_snapshot += len(records)
        self.last_time_ms = zxid_and_time(records[-1])[1]
        self.last_zxid = last_zxid

    def maintain(self) -> None:
        """Close a long segment, start a snapshot of what is closed, take note of a finished one.

        The work is done elsewhere; here it is a few system calls, and a few fsyncs when a new
        segment begins.
        """
        if self._broken is not None:
            raise self._broken
        if (
            self._since_snapshot >= self._snapshot_transactions
            or self._appender.end >= self._segment_bytes
        ):
            self._roll()
        self.compactor.collect()
        if self._to_compact and not self.compactor.busy:
            self.compactor.start(self._to_compact)
            self._to_compact = 0

    def _roll(self) -> None:
        """Go on in a new segment. Without room for one, the old one goes on for a while."""
        if time.monotonic() < self._roll_after_s:
            return
        try:
            if not self._appender.is_empty:
                self._appender = self._appender.follow(self.last_zxid + 1, self._nodes_max)
        except DiskFailed as error:
            self._broken = error
            raise
        except OSError as error:
            if error.errno not in NO_ROOM:
                self._broken = DiskFailed(f"{self.folder} cannot be written", why=str(error))
                raise self._broken from error
            self._roll_after_s = time.monotonic() + ROLL_RETRY_S
            log.warning("no room for a new log segment; the old one goes on", why=str(error))
            return
        self._since_snapshot = 0
        self._to_compact = self.last_zxid

    @property
    def snapshots_taken(self) -> int:
        return self.compactor.taken

    @property
    def snapshot_failures(self) -> int:
        return self.compactor.failures

    @property
    def last_snapshot_s(self) -> float:
        """How long the last snapshot took; 0 before the first."""
        return self.compactor.last_s

    def close(self) -> None:
        """End the snapshot in progress, close the log, let the folder go."""
        try:
            self.compactor.stop()
            if self._broken is None:
                self._appender.finish()
            self._appender.close()
        except OSError as error:
            # Nothing that was acknowledged depends on it.
            log.warning("the log was not closed cleanly", why=str(error))
        finally:
            os.close(self._lock)


def _remove_unfinished(folder: Path) -> None:
    """Remove what a crash left half written. A dead server's snapshot may still be in the making:
    its process finishes it, and what it leaves is good or goes at the next start."""
    if not files.is_locked(folder / files.COMPACTING):
        for path in files.list_folder(folder).unfinished:
            files.remove(path)


def _secret(folder: Path, *, is_new: bool) -> bytes:
    """The folder's secret; made when the folder is new."""
    try:
        return files.read_secret(folder)
    except FileNotFoundError:
        if not is_new:
            path = folder / files.SECRET
            raise files.corrupt(path, 0, "it is missing; session passwords come from it") from None
    return files.write_secret(folder, os.urandom(files.SECRET_BYTES))
