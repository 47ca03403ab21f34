"""Closing a tree to strangers, before its server listens.

A fresh tree is open to everybody, as a fresh ZooKeeper's is; so is one of an older version, and all
that was made in it. Here every such node gets the access list that our client would give it. The
root is the last: while it is open, a server that was killed in the middle has not finished. What
somebody closed with an access list of his own stays as it is.

These are writes like any other: in the log, by a session that is opened and closed for them.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Final

from holdfast.coordination.access import OWNER, Access
from holdfast.coordination.embedded import paths, protocol
from holdfast.coordination.embedded.records import encode_identities, encode_record
from holdfast.coordination.embedded.requests import decode_write, open_session_body, set_acl_body
from holdfast.coordination.embedded.store import Store
from holdfast.coordination.embedded.transactions import ACL, Identity, Transaction
from holdfast.wire.errors import BugError

_ITSELF: Final = (Identity("super", ""),)
_BATCH: Final = 256  # writes that become durable together
_SESSION_MS: Final = 10_000  # it is closed again at once; after a crash it ends as any other

Write = tuple[int, bytes]  # operation code, body


def close(store: Store, access: Access, now_ms: int) -> int:
    """Close what is open to everybody, or to whoever had an earlier secret of this folder. How many
    nodes were; the few of a fresh tree do not count."""
    found = [path for path in store.tree.nodes if _is_open(store, access, path)]
    if not found:
        return 0
    found.sort(key=lambda path: (path == paths.ROOT, path))
    session = secrets.randbits(63) or 1
    writes = list(_writes(access, found))
    for start in range(0, len(writes), _BATCH):
        _commit(store, session, writes[start : start + _BATCH], max(now_ms, store.last_time_ms))
    own = (paths.ROOT, paths.PROC)
    return sum(1 for path in found if path not in own and not path.startswith(f"{paths.PROC}/"))


def _is_open(store: Store, access: Access, path: str) -> bool:
    """Whether strangers may do something here, or only those who had an older secret."""
    for entry in store.tree.nodes[path].acl:
        if entry.scheme == "world":
            return True
        if entry.scheme == "digest" and entry.id.startswith(f"{OWNER}:"):
            return entry.id != access.owner
    return False


def _writes(access: Access, found: list[str]) -> Iterator[Write]:
    yield protocol.CREATE_SESSION, open_session_body(_SESSION_MS)
    for path in found:
        wanted = tuple(ACL(*entry) for entry in access.acl(path))
        yield protocol.SET_ACL, set_acl_body(path, wanted)
    yield protocol.CLOSE_SESSION, b""


def _commit(store: Store, session: int, writes: list[Write], now_ms: int) -> None:
    first = store.last_zxid + 1
    who = encode_identities(_ITSELF)
    records = [
        encode_record(first + at, now_ms, session, opcode, who, body)
        for at, (opcode, body) in enumerate(writes)
    ]
    store.commit(records, first + len(records) - 1)
    for at, (opcode, body) in enumerate(writes):
        transaction = Transaction(session, _ITSELF, decode_write(opcode, body))
        outcome = store.tree.apply(transaction, first + at, now_ms)
        if outcome.error:
            raise BugError(f"an access list was refused: {transaction.operation!r}")
