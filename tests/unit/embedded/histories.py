"""Data folders with a known history: after each zxid the digest that the tree must have."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from holdfast.coordination.embedded import protocol as p
from holdfast.coordination.embedded.jute import INT, encode_buffer, encode_string
from holdfast.coordination.embedded.records import (
    decode_records,
    encode_identities,
    encode_record,
    transaction_of,
)
from holdfast.coordination.embedded.store import Store
from holdfast.coordination.embedded.transactions import AuthIdentity
from holdfast.coordination.embedded.tree import Tree

SESSION = 0x1234_5678_9ABC
START_MS = 1_700_000_000_000
WHO = encode_identities((AuthIdentity("ip", "127.0.0.1"), AuthIdentity("digest", "ann:c2VjcmV0")))


def create_body(path: str, data: bytes = b"", flags: int = p.FLAG_PERSISTENT) -> bytes:
    acl = INT.pack(1) + INT.pack(p.PERM_ALL) + encode_string("world") + encode_string("anyone")
    return encode_string(path) + encode_buffer(data) + acl + INT.pack(flags)


def set_data_body(path: str, data: bytes) -> bytes:
    return encode_string(path) + encode_buffer(data) + INT.pack(-1)


def record_at(zxid: int, data: bytes = b"data") -> bytes:
    """The write with this zxid in every history: a session, then nodes, changes and refusals."""
    time_ms = START_MS + zxid
    if zxid == 1:
        return encode_record(zxid, time_ms, SESSION, p.CREATE_SESSION, WHO, INT.pack(10_000))
    if zxid % 5 == 0:
        body = set_data_body(f"/n{zxid - 1}", data * 2)
        return encode_record(zxid, time_ms, SESSION, p.SET_DATA, WHO, body)
    if zxid % 7 == 0:
        # The parent does not exist: a refused write, which takes a zxid too.
        body = create_body("/missing/child", data)
        return encode_record(zxid, time_ms, SESSION, p.CREATE, WHO, body)
    flags = p.FLAG_EPHEMERAL if zxid % 3 == 0 else p.FLAG_PERSISTENT
    body = create_body(f"/n{zxid}", data, flags)
    return encode_record(zxid, time_ms, SESSION, p.CREATE2, WHO, body)


def trees(upto_zxid: int, data: bytes = b"data") -> Iterator[Tree]:
    """One tree, as it is after each zxid from 0 on, from no disk at all."""
    tree = Tree()
    yield tree
    for zxid in range(1, upto_zxid + 1):
        (record,) = decode_records(record_at(zxid, data))
        tree.apply(transaction_of(record), zxid, record.time_ms)
        yield tree


def digests(upto_zxid: int, data: bytes = b"data") -> dict[int, str]:
    """What the tree must be after each zxid."""
    return {tree.last_zxid: tree.digest() for tree in trees(upto_zxid, data)}


def digest_at(zxid: int, data: bytes = b"data") -> str:
    """What the tree must be after this zxid."""
    *_, tree = trees(zxid, data)
    return tree.digest()


def commit(store: Store, count: int, data: bytes = b"data") -> None:
    """One batch of the history's next `count` records."""
    first = store.last_zxid + 1
    records = [record_at(zxid, data) for zxid in range(first, first + count)]
    store.commit(records, first + count - 1)


def fill(folder: Path, batches: Sequence[int], data: bytes = b"data") -> None:
    """A folder with these batches, closed cleanly, without a snapshot."""
    with opened(folder) as store:
        for count in batches:
            commit(store, count, data)


@contextmanager
def opened(folder: Path, **options: int) -> Iterator[Store]:
    store = Store.open(folder, **options)
    try:
        yield store
    finally:
        store.close()


def wait_for_snapshot(store: Store) -> None:
    """Until the snapshot process that is at work has ended; the test's time-out bounds it."""
    process = store.compactor._process
    assert process is not None
    process.wait()
    store.compactor.collect()


def fill_with_snapshots(folder: Path, rounds: int = 3, each: int = 6) -> int:
    """A folder with snapshots (two are kept) and the log after the older one; its last zxid."""
    with opened(folder, snapshot_transactions=each) as store:
        for _ in range(rounds):
            commit(store, each)
            store.maintain()
            wait_for_snapshot(store)
        assert store.snapshot_failures == 0, store.compactor.last_error
        commit(store, 2)
        commit(store, 3)
        return store.last_zxid


def fingerprint(folder: Path) -> dict[str, str]:
    """The name, mode and content of every file."""
    return {
        path.name: f"{path.stat().st_mode:o} {hashlib.sha256(path.read_bytes()).hexdigest()}"
        for path in sorted(folder.iterdir())
    }


@contextmanager
def changed(path: Path, data: bytes) -> Iterator[None]:
    """`path` with other bytes, for a while."""
    original = path.read_bytes()
    path.write_bytes(data)
    try:
        yield
    finally:
        path.write_bytes(original)


def flipped(data: bytes, offset: int) -> bytes:
    """One bit of the byte at `offset` turned; which one depends on the place."""
    return data[:offset] + bytes([data[offset] ^ (1 << offset % 8)]) + data[offset + 1 :]
