"""Look at a data folder, and save what can be saved. Neither ever writes to it.

`check` reads every file, also beside a running server. `salvage` writes a new folder with the
longest part of the history that is provably good: the newest good snapshot and the records after
it up to the first damage. What comes after damage is not used even where it is readable, because
each write was decided in the state that all writes before it had made.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final

from holdfast.coordination import access
from holdfast.coordination.embedded import folder as files
from holdfast.coordination.embedded.appender import Appender
from holdfast.coordination.embedded.jute import Malformed
from holdfast.coordination.embedded.log import (
    Mark,
    SegmentHeader,
    SegmentReader,
    read_header,
    read_mark,
)
from holdfast.coordination.embedded.records import BadRecord, decode_records, transaction_of
from holdfast.coordination.embedded.recovery import (
    Replay,
    check_closed,
    judge_tail,
    missing,
    without_collector,
)
from holdfast.coordination.embedded.snapshot import publish_snapshot, read_snapshot
from holdfast.coordination.embedded.tree import Tree
from holdfast.system.disk import make_folder
from holdfast.wire.errors import Corrupt, HoldfastError, Occupied, Usage
from holdfast.wire.limits import NODES_MAX

# How often a folder in use is read before what looks like damage is believed.
_ATTEMPTS: Final = 5


@dataclass(slots=True)
class FileReport:
    """One file. `entries` counts the records of a segment or the nodes of a snapshot."""

    name: str
    bytes: int
    entries: int = 0
    first_zxid: int = 0
    last_zxid: int = 0
    problem: str = ""
    note: str = ""


@dataclass(slots=True)
class CheckReport:
    """All files of a folder, and what is wrong between them."""

    folder: Path
    in_use: bool
    files: list[FileReport] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        return not self.problems and not any(one.problem for one in self.files)

    @property
    def last_zxid(self) -> int:
        return max((one.last_zxid for one in self.files), default=0)


@dataclass(slots=True)
class SalvageReport:
    """What was kept and what is lost. `lost_last` is the last zxid that left any trace."""

    source: Path
    target: Path
    kept_zxid: int = 0
    nodes: int = 0
    snapshot: str = ""
    records: int = 0
    lost_first: int = 0
    lost_last: int = 0
    new_secret: bool = False
    damage: list[str] = field(default_factory=list)

    @property
    def loses(self) -> bool:
        return self.lost_last >= self.lost_first > 0


def check(folder: Path) -> CheckReport:
    """Read every byte of a folder and say which files are good. Changes nothing."""
    report = CheckReport(folder, in_use=False)
    if not folder.is_dir():
        raise Usage(f"{folder} is not a folder", fix="give the folder of `coord serve --data`")
    for _ in range(_ATTEMPTS):
        before = files.list_folder(folder)
        report = CheckReport(folder, in_use=files.is_locked(folder / files.LOCK))
        try:
            _check_all(report, before)
        except FileNotFoundError as error:
            report.problems.append(f"{error.filename} went away while it was read")
        # A server that is at work changes files while they are read; damage stays.
        if report.is_good or not report.in_use:
            break
    return report


def _check_all(report: CheckReport, listing: files.Listing) -> None:
    folder = report.folder
    mark: Mark | None = None
    try:
        mark, warnings = read_mark(folder)
        report.problems += warnings
        files.read_secret(folder)
    except FileNotFoundError:
        report.problems.append(f"{folder / files.SECRET} is missing")
    except Corrupt as error:
        report.problems.append(_sentence(error))
    for zxid, path in listing.snapshots:
        report.files.append(_check_snapshot(zxid, path))
    _check_segments(report, listing, mark)
    if listing.segments or listing.snapshots or mark:
        _check_coverage(report, listing, mark)


def _check_snapshot(zxid: int, path: Path) -> FileReport:
    one = FileReport(path.name, path.stat().st_size, last_zxid=zxid)
    try:
        with without_collector():
            found = read_snapshot(path, NODES_MAX)
        one.entries = len(found.tree.nodes)
        if found.tree.digest() != found.digest:
            one.problem = "the tree in it does not have the digest that it names"
    except HoldfastError as error:
        one.problem = _sentence(error)
    return one


def _check_segments(report: CheckReport, listing: files.Listing, mark: Mark | None) -> None:
    headers: list[SegmentHeader | Corrupt] = []
    for _, path in listing.segments:
        try:
            headers.append(read_header(path))
        except Corrupt as error:
            headers.append(error)
    for number, (first_zxid, path) in enumerate(listing.segments):
        one = FileReport(path.name, path.stat().st_size, first_zxid=first_zxid)
        one.last_zxid = first_zxid - 1
        report.files.append(one)
        header = headers[number]
        if isinstance(header, Corrupt):
            one.problem = _sentence(header)
            continue
        reader = SegmentReader(path, header)
        try:
            one.entries = _count_records(reader)
            one.last_zxid = reader.last_zxid
            if number + 1 == len(headers):
                cut = judge_tail(reader, mark).cut_bytes
                one.note = f"{cut} bytes at its end are not a whole batch" if cut else ""
            elif isinstance(following := headers[number + 1], SegmentHeader):
                check_closed(reader, following)
            elif reader.fault is not None:
                raise files.corrupt(path, reader.fault.offset, reader.fault.reason)
        except HoldfastError as error:
            one.last_zxid = reader.last_zxid
            one.problem = _sentence(error)


def _count_records(reader: SegmentReader) -> int:
    """The records of a segment, each decoded as a replay would."""
    count = 0
    for batch in reader.batches():
        try:
            for record in decode_records(batch.payload):
                transaction_of(record)
                count += 1
        except (BadRecord, Malformed) as error:
            raise files.corrupt(reader.path, batch.offset, str(error)) from error
    return count


def _check_coverage(report: CheckReport, listing: files.Listing, mark: Mark | None) -> None:
    """The newest snapshot and the segments must join without a gap."""
    start = listing.snapshots[-1][0] + 1 if listing.snapshots else 1
    firsts = [first for first, _ in listing.segments]
    if not firsts or min(firsts) > start:
        report.problems.append(missing(report.folder, start).what)
    elif mark is not None and mark.first_zxid > firsts[-1]:
        report.problems.append(missing(report.folder, mark.first_zxid).what)
    ends = {one.first_zxid: one for one in report.files if one.name.startswith("log-")}
    for first, following in pairwise(firsts):
        one = ends[first]
        if not one.problem and one.last_zxid + 1 != following:
            report.problems.append(missing(report.folder, one.last_zxid + 1).what)


def salvage(folder: Path, target: Path) -> SalvageReport:
    """Write the longest provably good part of `folder` to the new folder `target`.

    `Occupied` while a server runs on `folder`; `Usage` if `target` has anything in it; `Corrupt`
    if nothing can be saved.
    """
    if not folder.is_dir():
        raise Usage(f"{folder} is not a folder", fix="give the folder of `coord serve --data`")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise Usage(f"{target} is not empty", fix="give the name of a folder that does not exist")
    if files.is_locked(folder / files.LOCK):
        raise Occupied(f"{folder} is in use by a server", fix="stop the server first")
    report = SalvageReport(folder, target)
    listing = files.list_folder(folder)
    with without_collector():
        state = _best_start(report, listing)
        seen_zxid = _replay_good(report, listing, state)
    report.kept_zxid = state.tree.last_zxid
    report.records = state.records
    report.nodes = len(state.tree.nodes)
    # A snapshot's name is a trace too, whatever is left of what was in it.
    seen_zxid = max([seen_zxid, *(zxid for zxid, _ in listing.snapshots)])
    if seen_zxid > report.kept_zxid:
        report.lost_first, report.lost_last = report.kept_zxid + 1, seen_zxid
    _write_target(report, state)
    return report


def _best_start(report: SalvageReport, listing: files.Listing) -> Replay:
    """The newest good snapshot. No older one can lead further: the log after it is the same."""
    for _, path in reversed(listing.snapshots):
        try:
            found = read_snapshot(path, NODES_MAX)
            if found.tree.digest() != found.digest:
                raise files.corrupt(path, 0, "the tree in it does not have its digest")
        except HoldfastError as error:
            report.damage.append(_sentence(error))
        else:
            report.snapshot = path.name
            return Replay(found.tree, found.time_ms)
    if not listing.segments or listing.segments[0][0] != 1:
        raise Corrupt(
            f"nothing in {report.source} can be saved",
            why="no snapshot is good, and the log does not begin at the first zxid",
            fix="restore the folder from a backup",
            story=report.damage,
        )
    return Replay(Tree(), 0)


def _replay_good(report: SalvageReport, listing: files.Listing, state: Replay) -> int:
    """Move `state` on to the first damage; the last zxid that the log shows any trace of."""
    mark = _mark(report)
    seen_zxid = mark.last_zxid if mark else 0
    expected = 0
    for number, (first_zxid, path) in enumerate(listing.segments, 1):
        if expected and first_zxid > expected:
            report.damage.append(missing(report.source, expected).what)
        expected = 0
        seen_zxid = max(seen_zxid, first_zxid - 1)
        try:
            reader = SegmentReader(path, read_header(path))
            seen_zxid = max(seen_zxid, _replay_segment(reader, state))
            if number == len(listing.segments):
                judge_tail(reader, mark)
            elif reader.fault is not None:
                raise files.corrupt(path, reader.fault.offset, reader.fault.reason)
            expected = reader.last_zxid + 1
        except Corrupt as error:
            report.damage.append(_sentence(error))
    return seen_zxid


def _mark(report: SalvageReport) -> Mark | None:
    try:
        mark, warnings = read_mark(report.source)
    except Corrupt as error:
        report.damage.append(_sentence(error))
        return None
    report.damage += warnings
    return mark


def _replay_segment(reader: SegmentReader, state: Replay) -> int:
    """Apply what follows the state without a gap; the last zxid that the segment shows."""
    header, tree = reader.header, state.tree
    follows = header.first_zxid <= tree.last_zxid + 1
    if follows:
        tree.nodes_max = header.nodes_max
    for batch in reader.batches():
        if follows and batch.last_zxid > tree.last_zxid:
            state.replay(reader.path, batch)
    if reader.fault is None:
        return reader.last_zxid
    if follows and reader.last_zxid >= tree.last_zxid:
        _replay_damaged(reader, state)
    return max([reader.last_zxid, *(zxid for _, zxid in reader.later_batches())])


def _replay_damaged(reader: SegmentReader, state: Replay) -> None:
    """Of the batch at the fault, the records before the damage: their own checksums are right."""
    try:
        for record in decode_records(reader.damaged_payload()):
            if record.zxid != state.tree.last_zxid + 1:
                return
            state.apply(record)
    except (BadRecord, Malformed):
        return


def _write_target(report: SalvageReport, state: Replay) -> None:
    target = report.target
    nodes_max = state.tree.nodes_max
    make_folder(target, 0o700)
    try:
        secret = files.read_secret(report.source)
    except (FileNotFoundError, Corrupt):
        report.new_secret = True
        secret = os.urandom(files.SECRET_BYTES)
    files.write_secret(target, secret)
    with suppress(HoldfastError):  # a new one is made, and the tree is closed with it
        access.keep(target / access.NAME, access.read(report.source / access.NAME))
    if report.kept_zxid:
        publish_snapshot(target, state.tree, state.time_ms)
    Appender.create(target, report.kept_zxid + 1, nodes_max).close()


def _sentence(error: HoldfastError) -> str:
    return f"{error.what}: {error.why}" if error.why else error.what
