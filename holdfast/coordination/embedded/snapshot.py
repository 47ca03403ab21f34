"""The whole tree in one file, checked from the first byte to the last.

    header   magic, version, zxid, time; crc32
    block    length u32, rows u32, crc32; then rows (`rows`)
    ...
    footer   length 0, blocks, rows, zxid, sha256 of the tree; crc32

Each checksum continues the one before it, so that blocks cannot be exchanged, dropped or taken
from another snapshot. The file has its final name only after it was read back and compared.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple
from zlib import crc32

from holdfast.coordination.embedded.folder import corrupt, snapshot_path
from holdfast.coordination.embedded.rows import Row, decode_block, encode_blocks
from holdfast.coordination.embedded.tree import Tree
from holdfast.wire.disk import sync_folder
from holdfast.wire.errors import BugError

_MAGIC: Final = b"HFCSNP\r\n"
_VERSION: Final = 1
_HEADER: Final = struct.Struct("!8sIqq")
_BLOCK: Final = struct.Struct("!II")
_FOOTER: Final = struct.Struct("!IQQq32s")
_CRC: Final = struct.Struct("!I")


def write_snapshot(path: Path, tree: Tree, time_ms: int) -> str:
    """Write the tree to `path`, durably; its digest. `time_ms` is the time of its last record."""
    digest = tree.digest()
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "wb", buffering=256 * 1024) as file:
        header = _HEADER.pack(_MAGIC, _VERSION, tree.last_zxid, time_ms)
        chain = crc32(header)
        file.write(header + _CRC.pack(chain))
        blocks = rows = 0
        for block, count in encode_blocks(tree.rows()):
            head = _BLOCK.pack(len(block), count)
            chain = crc32(block, crc32(head, chain))
            file.write(b"".join((head, _CRC.pack(chain), block)))
            blocks += 1
            rows += count
        footer = _FOOTER.pack(0, blocks, rows, tree.last_zxid, bytes.fromhex(digest))
        file.write(footer + _CRC.pack(crc32(footer, chain)))
        file.flush()
        os.fsync(file.fileno())
    return digest


class SnapshotReader:
    """Reads a snapshot; `Corrupt` at the first byte that is not as it was written.

    `zxid` and `time_ms` are known at once; `digest` after all blocks were read.
    """

    def __init__(self, path: Path, file: BinaryIO, zxid: int | None = None) -> None:
        self.path = path
        self.digest = ""
        self._file = file
        self._size = os.fstat(file.fileno()).st_size
        raw = self._take(_HEADER.size + _CRC.size)
        magic, version, self.zxid, self.time_ms = _HEADER.unpack_from(raw)
        self._chain = crc32(raw[: _HEADER.size])
        if self._chain != _CRC.unpack_from(raw, _HEADER.size)[0] or magic != _MAGIC:
            raise corrupt(path, 0, "the header's checksum is wrong")
        if version != _VERSION:
            raise corrupt(
                path,
                8,
                f"the snapshot has format {version} and this program knows {_VERSION}",
                "use the version of holdfast that wrote the folder",
            )
        if self.zxid != (int(path.name.rpartition("-")[2], 16) if zxid is None else zxid):
            raise corrupt(path, 0, f"the file's name is not that of its zxid {self.zxid:#x}")

    def _take(self, length: int) -> bytes:
        at = self._file.tell()
        # Asked before it is read: a wrong length must not become a huge buffer.
        data = self._file.read(length) if length <= self._size - at else b""
        if len(data) < length:
            raise corrupt(self.path, at, "the file ends too early, or a length is wrong")
        return data

    def blocks(self) -> Iterator[bytes]:
        """All blocks, each after its checksum was found right; the footer is checked last."""
        blocks = rows = 0
        while True:
            at = self._file.tell()
            head = self._take(_BLOCK.size)
            length, count = _BLOCK.unpack(head)
            if length == 0:
                self._check_footer(head, at, blocks, rows)
                return
            (crc,) = _CRC.unpack(self._take(_CRC.size))
            block = self._take(length)
            self._chain = crc32(block, crc32(head, self._chain))
            if self._chain != crc:
                raise corrupt(self.path, at, "the checksum of a block is wrong")
            blocks += 1
            rows += count
            yield block

    def _check_footer(self, start: bytes, at: int, blocks: int, rows: int) -> None:
        raw = start + self._take(_FOOTER.size + _CRC.size - len(start))
        (crc,) = _CRC.unpack_from(raw, _FOOTER.size)
        _, blocks_said, rows_said, zxid, digest = _FOOTER.unpack_from(raw)
        if crc != crc32(raw[: _FOOTER.size], self._chain):
            raise corrupt(self.path, at, "the footer's checksum is wrong")
        if (blocks_said, rows_said, zxid) != (blocks, rows, self.zxid):
            raise corrupt(self.path, at, "the footer names another number of rows")
        if self._file.tell() != self._size:
            raise corrupt(self.path, self._file.tell(), "bytes follow the footer")
        self.digest = digest.hex()

    def rows(self) -> Iterator[Row]:
        for block in self.blocks():
            yield from decode_block(block)


class Snapshot(NamedTuple):
    """What a snapshot holds. `digest` is the tree's when it was written, `time_ms` the last
    record's."""

    tree: Tree
    time_ms: int
    digest: str


def read_snapshot(path: Path, nodes_max: int, *, zxid: int | None = None) -> Snapshot:
    """The tree in a snapshot; `Corrupt` if one byte of it is not as it was written.

    `zxid` is the one that it must have; None: the one in its name. That the tree has the digest
    is not looked at: the checksums say as much, in a tenth of the time.
    """
    with path.open("rb", buffering=256 * 1024) as file:
        reader = SnapshotReader(path, file, zxid)
        tree = Tree.from_rows(reader.rows(), reader.zxid, nodes_max)
        return Snapshot(tree, reader.time_ms, reader.digest)


def verify_snapshot(path: Path) -> None:
    """Check every byte without building the tree. `Corrupt` if one is not as it was written."""
    with path.open("rb", buffering=256 * 1024) as file:
        for _ in SnapshotReader(path, file).blocks():
            pass


def publish_snapshot(folder: Path, tree: Tree, time_ms: int) -> Path:
    """Write a snapshot, read it back, compare, and only then give it its name."""
    path = snapshot_path(folder, tree.last_zxid)
    unfinished = path.with_name(path.name + ".tmp")
    digest = write_snapshot(unfinished, tree, time_ms)
    again = read_snapshot(unfinished, tree.nodes_max, zxid=tree.last_zxid)
    if again.tree.digest() != digest or again.digest != digest:
        raise BugError(f"{unfinished} does not give back the tree that was written to it")
    unfinished.rename(path)
    sync_folder(folder)
    return path
