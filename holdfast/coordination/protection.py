"""Access lists of a plane that was made open, and of what its workers need.

The embedded server closes its own tree when it starts (`embedded.closing`). An ensemble that others
use is closed from here: everything below the cluster's root, and nothing beside it.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from kazoo import exceptions as kz

from holdfast.coordination.kazoo_client import entries
from holdfast.wire.places import WORKER_PATHS

if TYPE_CHECKING:
    from holdfast.coordination.session import Session

_TOP: Final = "/holdfast"  # the root of a cluster that has no chroot
_AT_ONCE: Final = 16  # questions: a server answers more than a thousand of them in a second


def close(session: Session) -> int:
    """Close what is open to everybody at the cluster's root and below. How many nodes were.

    All of it is looked at, also below what is closed: a machine of an older version may have made
    something since. It costs two questions a node, a few of them at the same time.
    """
    if session.access is None:
        return 0
    found, level = [], ["/" if session.chroot else _TOP]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        while level:
            looked = zip(level, pool.map(partial(_looked, session), level), strict=True)
            level = []
            for path, (is_open, names) in looked:
                if is_open:
                    found.append(path)
                level += [f"{path.rstrip('/')}/{name}" for name in names]
    # What is below first: while a parent is open nobody who looks at it takes it for finished.
    return sum(_close(session, path) for path in reversed(found))


def ready_for_workers(session: Session) -> None:
    """Make what is above the facts of workers: they may write below it, not beside it."""
    if session.access is not None:
        for path in WORKER_PATHS:
            session.nodes.ensure(path)


def _looked(session: Session, path: str) -> tuple[bool, list[str]]:
    """Whether a node is open to everybody, and what is directly below it."""
    return _is_open(session, path), session.nodes.children(path)


def _is_open(session: Session, path: str) -> bool:
    nodes = session.nodes
    try:
        acl, _ = nodes.persist(
            lambda: nodes.client.get_acls_async(nodes.full(path)),
            f"read who may use {path}",
            passing=(kz.NoNodeError,),
        )
    except kz.NoNodeError:
        return False
    return any(entry.id.scheme == "world" for entry in acl)


def _close(session: Session, path: str) -> bool:
    assert session.access is not None
    nodes, wanted = session.nodes, entries(session.access.acl(path))

    def send() -> Any:
        return nodes.client.set_acls_async(nodes.full(path), wanted)

    try:
        nodes.persist(send, f"close {path}", passing=(kz.NoNodeError,), writes=True)
    except kz.NoNodeError:
        return False
    return True
