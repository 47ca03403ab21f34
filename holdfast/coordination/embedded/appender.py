"""The end of the log: batches are appended here, one fsync each.

A batch is on disk, whole, when `append` returns. If there is no room it is not there at all, and
a later one may be; after any other error the disk is not trusted again.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from holdfast.coordination.embedded.folder import (
    prepare,
    segment_path,
)
from holdfast.coordination.embedded.log import (
    HEADER_BYTES,
    DurableMark,
    Mark,
    SegmentHeader,
    encode_batch,
    encode_header,
)
from holdfast.system.disk import NO_ROOM, sync_folder
from holdfast.system.durable import write_all
from holdfast.wire.errors import DiskFailed, Full

# Zeros written ahead of the log's end: an append that does not change the file's size needs no
# journal commit of the file system, and its fsync is about half as long.
LOG_AHEAD_BYTES: Final = 256 * 1024


class Appender:
    """The last segment, open for writing. `end` is its durable length."""

    def __init__(
        self, path: Path, header: SegmentHeader, end: int, chain: int, last_zxid: int
    ) -> None:
        self.path = path
        self.header = header
        self.end = end
        self.chain = chain
        self._handle = os.open(path, os.O_WRONLY)
        self._size = end
        try:
            # Also what a killed process had written but not synced must be durable before
            # anybody is told of it, and the names that it gave; and what follows the good part
            # must not come back.
            os.ftruncate(self._handle, end)
            os.fsync(self._handle)
            sync_folder(path.parent)
            self._mark = DurableMark.open(path.parent, Mark(header.first_zxid, end, last_zxid))
        except BaseException:
            os.close(self._handle)
            raise

    @classmethod
    def create(cls, folder: Path, first_zxid: int, nodes_max: int) -> Appender:
        """The first segment of a folder, durable before it has a name."""
        raw, header = encode_header(first_zxid, nodes_max)
        path = segment_path(folder, first_zxid)
        prepare(path, raw).rename(path)
        return cls(path, header, HEADER_BYTES, header.chain, first_zxid - 1)

    @property
    def is_empty(self) -> bool:
        return self.end == HEADER_BYTES

    def follow(self, first_zxid: int, nodes_max: int) -> Appender:
        """End this segment and go on in a new one, which takes the place of an empty one.

        An `OSError` leaves this one as usable as it was. `DiskFailed`: the new one has its name,
        so that nothing may be added to this one any more, and yet it cannot be used.
        """
        header = self.header
        previous = (header.first_zxid, self.end, self.chain)
        if self.is_empty:
            previous = (header.previous_zxid, header.previous_bytes, header.previous_chain)
        self.finish()
        raw, new = encode_header(first_zxid, nodes_max, previous)
        path = segment_path(self.path.parent, first_zxid)
        prepare(path, raw).rename(path)
        try:
            following = Appender(path, new, HEADER_BYTES, new.chain, first_zxid - 1)
            self.close()
        except OSError as error:
            raise self._failed(error) from error
        return following

    def append(self, payload: bytes, first_zxid: int, last_zxid: int) -> None:
        """Make a batch durable. `Full` if there is no room, `DiskFailed` if it cannot be."""
        data, chain = encode_batch(
            self.header.salt, self.chain, self.end, first_zxid, last_zxid, payload
        )
        end = self.end + len(data)
        try:
            if end > self._size:
                self._write_ahead(data, end)
            else:
                write_all(self._handle, data, self.end)
            os.fdatasync(self._handle)
        except OSError as error:
            self._cut(error)
            if error.errno in NO_ROOM:
                raise Full(
                    f"no room on the disk for {self.path}",
                    why=str(error),
                    fix=f"free space for {self.path.parent}; writes go on by themselves then",
                ) from error
            raise self._failed(error) from error
        self.end = end
        self.chain = chain
        self._tell(Mark(self.header.first_zxid, end, last_zxid))

    def _write_ahead(self, data: bytes, end: int) -> None:
        """Write a batch that makes the file longer, with room for the next ones if there is."""
        size = end + LOG_AHEAD_BYTES
        try:
            write_all(self._handle, data + bytes(LOG_AHEAD_BYTES), self.end)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            os.ftruncate(self._handle, self.end)
            size = end
            write_all(self._handle, data, self.end)
        self._size = size

    def _cut(self, cause: OSError) -> None:
        """Take back what the failed batch left.

        After a failed fsync the system may count pages as clean that never reached the disk.
        Cutting the file drops those of them that lie behind the durable end, and makes the one
        that the end divides dirty again; the fsync that follows then speaks for the whole file.
        """
        try:
            os.ftruncate(self._handle, self.end)
            os.fsync(self._handle)
        except OSError as error:
            raise self._failed(error) from cause
        self._size = self.end

    def _failed(self, error: OSError) -> DiskFailed:
        return DiskFailed(
            f"{self.path} could not be written or synced",
            why=str(error),
            fix="look at the disk's health (`dmesg`), then start the server again: what was"
            " acknowledged is checked at the start",
        )

    def _tell(self, mark: Mark) -> None:
        try:
            self._mark.advance(mark)
        except OSError as error:
            # The older mark stays true; it only proves less.
            if error.errno not in NO_ROOM:
                raise self._failed(error) from error

    def finish(self) -> None:
        """Give back the room written ahead, durably: no more batches follow."""
        os.ftruncate(self._handle, self.end)
        os.fsync(self._handle)
        self._size = self.end

    def close(self) -> None:
        """Close the files. The mark is made durable where the disk still allows it."""
        try:
            self._mark.sync()
        finally:
            self._mark.close()
            os.close(self._handle)
