"""The whole tree in one file, checked from the first byte to the last.

    header   magic, version, zxid, time; crc32
    block    length u32, rows u32, crc32; then rows (below)
    ...
    footer   length 0, blocks, rows, zxid, sha256 of the tree; crc32

Each checksum continues the one before it, so that blocks cannot be exchanged, dropped or taken
from another snapshot. The file has its final name only after it was read back and compared.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple
from zlib import crc32

from holdfast.coordination.embedded.folder import corrupt, snapshot_path
from holdfast.coordination.embedded.tree import Tree
from holdfast.system.disk import sync_folder
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


# --- rows -----------------------------------------------------------------------------------------
# Rows of plain values (int, str, bytes, None) as bytes, in blocks.
#
# A block stands for itself: it begins with the shapes of its rows ("is" = a number and a text) and
# each row names its shape. Rows of one shape share one `struct`, which is what makes it fast.
# Numbers are 64 bits.


Value = int | str | bytes | None
Row = tuple[Value, ...]

# After so many bytes a block is closed.
BLOCK_BYTES: Final = 64 * 1024
_COUNTS: Final = struct.Struct("!IH")
_SHAPE_LENGTH: Final = struct.Struct("!I")
_LETTERS: Final = {int: "i", str: "s", bytes: "b", type(None): "n"}
_CODES: Final = {"i": "q", "s": "I", "b": "I", "n": ""}


class _Shape:
    """The layout of rows of one kind: its number, the numbers and lengths, then texts and bytes."""

    __slots__ = ("nulls", "number", "struct", "variable")

    def __init__(self, letters: str, number: int) -> None:
        self.number = number
        self.struct = struct.Struct("!B" + "".join(_CODES[letter] for letter in letters))
        self.variable = [(at, letter == "s") for at, letter in enumerate(letters) if letter in "sb"]
        self.nulls = [at for at, letter in enumerate(letters) if letter == "n"]

    def encode(self, row: Row, parts: list[bytes]) -> int:
        """Append the row to `parts`; how many bytes it took."""
        if not self.variable and not self.nulls:
            parts.append(self.struct.pack(self.number, *row))
            return self.struct.size
        fields: list[Value] = list(row)
        blobs = []
        for at, is_text in self.variable:
            value = fields[at]
            blob = value.encode("utf-8", "surrogatepass") if is_text else value  # type: ignore[union-attr]
            blobs.append(blob)
            fields[at] = len(blob)  # type: ignore[arg-type]
        for at in reversed(self.nulls):
            del fields[at]
        start = len(parts)
        parts.append(self.struct.pack(self.number, *fields))
        parts += blobs  # type: ignore[arg-type]
        return sum(map(len, parts[start:]))

    def decode(self, data: bytes, at: int) -> tuple[Row, int]:
        """The row at `at`, and where the next one begins."""
        _, *fields = self.struct.unpack_from(data, at)
        at += self.struct.size
        for place in self.nulls:
            fields.insert(place, None)
        for place, is_text in self.variable:
            end = at + fields[place]
            raw = data[at:end]
            fields[place] = raw.decode("utf-8", "surrogatepass") if is_text else raw
            at = end
        return tuple(fields), at


def encode_blocks(rows: Iterable[Row]) -> Iterator[tuple[bytes, int]]:
    """The rows as blocks of about BLOCK_BYTES, each with its number of rows."""
    shapes: dict[tuple[type, ...], _Shape] = {}
    letters: list[str] = []
    parts: list[bytes] = []
    count = size = 0
    for row in rows:
        kind = tuple(map(type, row))
        shape = shapes.get(kind)
        if shape is None:
            text = "".join(_LETTERS[one] for one in kind)
            shape = shapes[kind] = _Shape(text, len(letters))
            letters.append(text)
        size += shape.encode(row, parts)
        count += 1
        # A shape's number is one byte.
        if size >= BLOCK_BYTES or len(letters) == 256:
            yield _join(letters, parts, count), count
            shapes, letters, parts = {}, [], []
            count = size = 0
    if count:
        yield _join(letters, parts, count), count


def _join(letters: list[str], parts: list[bytes], count: int) -> bytes:
    head = [_COUNTS.pack(count, len(letters))]
    for text in letters:
        head += [_SHAPE_LENGTH.pack(len(text)), text.encode()]
    return b"".join(head + parts)


def decode_block(block: bytes) -> Iterator[Row]:
    """The rows of a block whose checksum was right."""
    count, shape_count = _COUNTS.unpack_from(block)
    at = _COUNTS.size
    shapes = []
    for number in range(shape_count):
        (length,) = _SHAPE_LENGTH.unpack_from(block, at)
        at += _SHAPE_LENGTH.size
        shapes.append(_Shape(block[at : at + length].decode(), number))
        at += length
    for _ in range(count):
        row, at = shapes[block[at]].decode(block, at)
        yield row
    if at != len(block):
        raise ValueError("a block is longer than its rows")
