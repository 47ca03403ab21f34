"""The archive of a bundle: a tar file whose bytes depend on nothing but the code.

Sorted names, no times, no owners, two modes (a program or not), no compression: the same folder
gives the same bytes on any machine. Only files and links within the folder are taken, and on the
way back everything else is refused before anything is written.
"""

from __future__ import annotations

import io
import os
import stat
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Final

from holdfast.system.disk import private_folder
from holdfast.wire.errors import Corrupt, Refused, Usage
from holdfast.wire.limits import BUNDLE_FILES_MAX, QUIET_PIECE_BYTES

# Code, not data: it is copied to every machine. The tree is checked whole before it is used.
BUNDLE_BYTES_MAX: Final = 256 * 1024 * 1024
# The largest files are named when a bundle is too large.
BUNDLE_LARGEST_SHOWN: Final = 5

_PROGRAM: Final = 0o755
_PLAIN: Final = 0o644
_BLOCK: Final = 512


@dataclass(frozen=True, slots=True)
class ArchiveMember:
    """A file (`target` is None) or a link of an archive."""

    path: PurePosixPath
    size_bytes: int
    is_program: bool
    target: str | None = None


def members_of(folder: Path, paths: Iterable[PurePosixPath]) -> list[ArchiveMember]:
    """What the archive of these files will hold; `Usage` for what cannot be in one."""
    members = [_member(folder, path) for path in sorted(paths, key=str)]
    check_members(members)
    check_size(members)
    return members


def _member(folder: Path, path: PurePosixPath) -> ArchiveMember:
    full = folder / path
    status = full.lstat()
    try:
        str(path).encode("utf-8")
    except UnicodeEncodeError:
        raise Usage(
            f"the name {str(path)!r} is not UTF-8", fix="rename it, or let git ignore it"
        ) from None
    if stat.S_ISLNK(status.st_mode):
        return ArchiveMember(path, 0, is_program=False, target=os.fspath(full.readlink()))
    if not stat.S_ISREG(status.st_mode):
        raise Usage(
            f"{full} is neither a file nor a link",
            why="a socket, a pipe or a device cannot be copied to another machine",
            fix="let git ignore it",
        )
    return ArchiveMember(path, status.st_size, is_program=bool(status.st_mode & stat.S_IXUSR))


def check_size(members: Iterable[ArchiveMember]) -> None:
    """`Usage` with the largest files when there is more than a bundle may have."""
    found = list(members)
    total_bytes = sum(member.size_bytes for member in found)
    if len(found) <= BUNDLE_FILES_MAX and total_bytes <= BUNDLE_BYTES_MAX:
        return
    largest = sorted(found, key=lambda member: -member.size_bytes)[:BUNDLE_LARGEST_SHOWN]
    raise Usage(
        f"the folder is too large for a bundle: {len(found)} files, {total_bytes} bytes",
        why=f"a bundle is code, and has at most {BUNDLE_FILES_MAX} files and {BUNDLE_BYTES_MAX}"
        " bytes",
        fix="add what is not code to .gitignore; the largest files are below",
        story=[f"{member.size_bytes:>12} bytes  {member.path}" for member in largest],
    )


def check_members(members: Iterable[ArchiveMember]) -> None:
    """`Refused` unless everything stays within the folder, whatever it is unpacked into.

    A name is relative and plain. Nothing lies below a link. A link's target goes up first and then
    down, never out of the folder, and through no other link: so what it says is what it means.
    """
    found = list(members)
    names = {member.path for member in found}
    links = {member.path for member in found if member.target is not None}
    if len(names) != len(found):
        raise Refused("an archive has two members of the same name", fix=_FIX)
    for member in found:
        parts = member.path.parts
        if not parts or member.path.is_absolute() or ".." in parts or "\0" in str(member.path):
            raise Refused(f"an archive has a member {str(member.path)!r}", fix=_FIX)
        above = set(member.path.parents)
        if above & names:
            raise Refused(f"{str(member.path)!r} lies below a member that is no folder", fix=_FIX)
        if member.target is not None:
            _check_link(member, links)


def _check_link(member: ArchiveMember, links: set[PurePosixPath]) -> None:
    target = PurePosixPath(member.target or "")
    rest = list(target.parts)
    at = member.path.parent
    while rest and rest[0] == "..":
        if at == PurePosixPath():
            break
        at = at.parent
        rest.pop(0)
    full = at.joinpath(*rest)
    through = set(full.parents) & links
    if not member.target or target.is_absolute() or ".." in rest or through:
        raise Refused(
            f"the link {str(member.path)!r} -> {member.target!r} leads out of the folder",
            why="a bundle holds only links that stay within it and pass through no other link",
            fix="replace it by what it points to, or let git ignore it",
        )


_FIX: Final = "do not use this archive; push the bundle again"


def write(folder: Path, members: Iterable[ArchiveMember]) -> Iterator[bytes]:
    """The archive in pieces. A file that has changed since it was looked at is an error."""
    for member in members:
        yield _header(member)
        if member.target is None:
            yield from _content(folder / member.path, member)
            yield bytes(-member.size_bytes % _BLOCK)
    yield bytes(2 * _BLOCK)


def _header(member: ArchiveMember) -> bytes:
    info = tarfile.TarInfo(str(member.path))
    info.mode = _PROGRAM if member.is_program else _PLAIN
    if member.target is None:
        info.size = member.size_bytes
    else:
        info.type = tarfile.SYMTYPE
        info.linkname = member.target
        info.mode = 0o777
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict")


def _content(path: Path, member: ArchiveMember) -> Iterator[bytes]:
    left = member.size_bytes
    # Not through a link that has taken the file's place meanwhile.
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(handle, "rb") as file:
        while left and (piece := file.read(min(left, QUIET_PIECE_BYTES))):
            left -= len(piece)
            yield piece
        if left or file.read(1):
            raise Refused(f"{path} changed while it was packed", fix="run it again")


def read_members(file: BinaryIO) -> list[tuple[ArchiveMember, int]]:
    """What an archive holds, checked, each with the place of its bytes. Nothing is written."""
    found: list[tuple[ArchiveMember, int]] = []
    try:
        with tarfile.open(fileobj=file, mode="r:", encoding="utf-8", errors="strict") as tar:
            for info in tar:
                if len(found) >= BUNDLE_FILES_MAX:
                    raise Refused(f"an archive has more than {BUNDLE_FILES_MAX} members", fix=_FIX)
                found.append((_of_info(info), info.offset_data))
    except (tarfile.TarError, EOFError, ValueError, OverflowError) as error:
        raise Corrupt("an archive cannot be read", why=str(error), fix=_FIX) from error
    members = [member for member, _ in found]
    check_members(members)
    if sum(member.size_bytes for member in members) > BUNDLE_BYTES_MAX:
        raise Refused(f"an archive has more than {BUNDLE_BYTES_MAX} bytes", fix=_FIX)
    return found


def _of_info(info: tarfile.TarInfo) -> ArchiveMember:
    path = PurePosixPath(info.name)
    if info.issym():
        return ArchiveMember(path, 0, is_program=False, target=info.linkname)
    if not info.isreg() or info.type == tarfile.GNUTYPE_SPARSE or info.size < 0:
        raise Refused(
            f"an archive holds {info.name!r}, which is neither a file nor a link",
            why="a bundle has no devices, hard links or folders of its own",
            fix=_FIX,
        )
    return ArchiveMember(path, info.size, is_program=bool(info.mode & stat.S_IXUSR))


def extract(file: BinaryIO, found: Iterable[tuple[ArchiveMember, int]], folder: Path) -> None:
    """Write checked members into an empty folder: all files, then all links."""
    rows = list(found)
    for member, at in rows:
        if member.target is None:
            _extract_file(file, member, at, folder / member.path)
    for member, _ in rows:
        if member.target is not None:
            full = folder / member.path
            private_folder(full.parent)
            full.symlink_to(member.target)


def _extract_file(file: BinaryIO, member: ArchiveMember, at: int, path: Path) -> None:
    private_folder(path.parent)
    mode = 0o700 if member.is_program else 0o600
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    with os.fdopen(os.open(path, flags, mode), "wb") as out:
        file.seek(at, io.SEEK_SET)
        left = member.size_bytes
        while left:
            piece = file.read(min(left, QUIET_PIECE_BYTES))
            if not piece:
                raise Corrupt(f"an archive breaks off within {str(member.path)!r}", fix=_FIX)
            out.write(piece)
            left -= len(piece)
        # The mode that was asked for, whatever this process's mask is.
        os.fchmod(out.fileno(), mode)
