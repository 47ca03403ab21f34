"""From a data folder to the tree: the newest snapshot, and the later records through `apply`.

Reads only. Every file in the folder is checked, also those that are not needed for the newest
state: damage is better found while the copy that could replace it is still there.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from holdfast.coordination.embedded.folder import (
    DURABLE,
    Listing,
    corrupt,
    list_folder,
    segment_path,
)
from holdfast.coordination.embedded.jute import Malformed
from holdfast.coordination.embedded.log import (
    HEADER_BYTES,
    LogBatch,
    Mark,
    SegmentHeader,
    SegmentReader,
    read_header,
    read_mark,
)
from holdfast.coordination.embedded.records import (
    BadRecord,
    LoggedRecord,
    decode_records,
    transaction_of,
)
from holdfast.coordination.embedded.snapshot import read_snapshot, verify_snapshot
from holdfast.coordination.embedded.tree import Tree
from holdfast.wire.errors import Corrupt
from holdfast.wire.limits import NODES_MAX


class Tail(NamedTuple):
    """Where the log goes on: the last segment, its good length, and what was cut off there."""

    path: Path
    header: SegmentHeader
    end: int
    chain: int
    cut_bytes: int


class RecoveredStore(NamedTuple):
    """The state of a folder. `tail` is None when the folder is new."""

    tree: Tree
    time_ms: int
    snapshot: Path | None
    records: int
    tail: Tail | None
    warnings: tuple[str, ...]


class Replay:
    """A tree and the time of its last record, moved on by records."""

    def __init__(self, tree: Tree, time_ms: int) -> None:
        self.tree = tree
        self.time_ms = time_ms
        self.records = 0

    def apply(self, record: LoggedRecord) -> None:
        """Apply the next record; `Malformed` if it is no write."""
        self.tree.apply(transaction_of(record), record.zxid, record.time_ms)
        self.time_ms = record.time_ms
        self.records += 1

    def replay(self, path: Path, batch: LogBatch) -> None:
        """Apply the batch's records that the tree does not have yet."""
        expected = batch.first_zxid
        tree = self.tree
        try:
            for record in decode_records(batch.payload):
                if record.zxid != expected:
                    raise corrupt(
                        path,
                        batch.offset,
                        f"zxid {record.zxid:#x} stands where {expected:#x} belongs",
                    )
                expected += 1
                if record.zxid > tree.last_zxid:
                    self.apply(record)
        except BadRecord as error:
            raise corrupt(path, batch.offset, error.reason) from error
        except Malformed as error:
            raise corrupt(
                path,
                batch.offset,
                f"the checksum of zxid {expected - 1:#x} is right, but it is no write: {error}",
                "use the version of holdfast that wrote the folder",
            ) from error
        if expected != batch.last_zxid + 1:
            raise corrupt(path, batch.offset, "the batch does not hold the zxids that it names")


@contextmanager
def without_collector() -> Iterator[None]:
    """Building a large tree makes no garbage; looking for it would double the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def recover(folder: Path, *, nodes_max: int = NODES_MAX) -> RecoveredStore:
    """The state of a folder that nobody else writes to. `Corrupt` for anything but a torn tail."""
    listing = list_folder(folder)
    mark, warnings = read_mark(folder)
    if not listing.segments:
        if listing.snapshots or mark is not None:
            raise missing(folder, mark.first_zxid if mark else listing.snapshots[-1][0] + 1)
        return RecoveredStore(Tree(nodes_max), 0, None, 0, None, ())
    if mark is not None and mark.first_zxid > listing.segments[-1][0]:
        raise missing(folder, mark.first_zxid)
    with without_collector():
        state, snapshot = load_snapshot(listing, nodes_max)
        for _, path in listing.snapshots[:-1]:
            verify_snapshot(path)
        reader = replay_log(folder, listing, state)
    tail = judge_tail(reader, mark)
    if mark is None and tail.end > HEADER_BYTES:
        warnings.append(f"{folder / DURABLE} is missing: damage in the last batch looks torn")
    state.tree.nodes_max = nodes_max
    return RecoveredStore(state.tree, state.time_ms, snapshot, state.records, tail, tuple(warnings))


def load_snapshot(listing: Listing, nodes_max: int) -> tuple[Replay, Path | None]:
    """The newest snapshot as a state, or an empty one when there is none."""
    if not listing.snapshots:
        return Replay(Tree(nodes_max), 0), None
    _, path = listing.snapshots[-1]
    try:
        found = read_snapshot(path, nodes_max)
    except Corrupt as error:
        if len(listing.snapshots) > 1:
            error.fix += (
                f". The older {listing.snapshots[-2][1].name} and the log after it are still"
                " there: if they are good, salvage loses nothing"
            )
        raise
    return Replay(found.tree, found.time_ms), path


def replay_log(
    folder: Path, listing: Listing, state: Replay, *, closed_only: bool = False
) -> SegmentReader:
    """Check all segments and replay those that `state` needs; the reader of the last one read.

    Every segment but the last must end as the next one's header says, and from the state's zxid
    on none may be missing. The last one, where the log goes on, is left out with `closed_only`.
    """
    headers = [read_header(path) for _, path in listing.segments]
    start = state.tree.last_zxid + 1
    first_needed = max((h.first_zxid for h in headers if h.first_zxid <= start), default=0)
    if not first_needed:
        raise missing(folder, start)
    following: list[SegmentHeader | None] = [*headers[1:], None]
    if closed_only:
        headers.pop()
    reader: SegmentReader | None = None
    for (_, path), header, after in zip(listing.segments, headers, following, strict=False):
        if reader is not None and reader.last_zxid + 1 < header.first_zxid > first_needed:
            raise missing(folder, reader.last_zxid + 1)
        reader = SegmentReader(path, header)
        if header.first_zxid >= first_needed:
            state.tree.nodes_max = header.nodes_max
            for batch in reader.batches():
                state.replay(path, batch)
        else:
            for _ in reader.batches():
                pass
        if after is not None:
            check_closed(reader, after)
    if reader is None or reader.last_zxid < start - 1:
        raise missing(folder, start)
    return reader


def check_closed(reader: SegmentReader, following: SegmentHeader) -> None:
    """A segment that is not the last has no fault, and ends where the next header says."""
    if reader.fault is not None:
        raise corrupt(reader.path, reader.fault.offset, reader.fault.reason)
    if following.previous_zxid == reader.header.first_zxid and (
        following.previous_bytes != reader.end
        or following.previous_chain != reader.chain
        or reader.size != reader.end
    ):
        raise corrupt(
            reader.path,
            reader.end,
            f"the segment ends here, and the next one says at {following.previous_bytes}",
        )


def judge_tail(reader: SegmentReader, mark: Mark | None) -> Tail:
    """Tell a torn tail from damage at the end of the last segment, as `log` explains."""
    fault = reader.fault
    durable = mark.length if mark and mark.first_zxid == reader.header.first_zxid else 0
    if reader.end < durable:
        raise corrupt(
            reader.path,
            reader.end,
            f"{fault.reason if fault else 'the log ends'}, and the file was durable up to"
            f" {durable}",
        )
    if fault is not None:
        later = next(reader.later_batches(), None)
        if later is not None:
            raise corrupt(
                reader.path, fault.offset, f"{fault.reason}, and a good batch is at {later[0]}"
            )
    cut = reader.size - reader.end if fault else 0
    return Tail(reader.path, reader.header, reader.end, reader.chain, cut)


def missing(folder: Path, zxid: int) -> Corrupt:
    """The refusal of a log without the segment that holds `zxid`."""
    path = segment_path(folder, zxid)
    return Corrupt(
        f"the log of {folder} is incomplete: no segment has zxid {zxid:#x}",
        why=f"{path.name} (or the segment that held it) is not there",
        fix=corrupt(path, 0, "").fix,
    )
