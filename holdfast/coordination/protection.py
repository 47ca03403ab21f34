"""Access lists of a plane that was made open, and of what its workers need.

The embedded server closes its own tree when it starts (`embedded.main`). An ensemble that others
use is closed from here: everything below the cluster's root, and nothing beside it.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from kazoo import exceptions as kz
from kazoo.security import ACL

from holdfast.coordination.kazoo_client import entries
from holdfast.wire.names import (
    MODELS_PATH,
    REPLICA_TURNS_NAME,
    REPLICAS_NAME,
    SERVICES_PATH,
)

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


def ready_for_workers(session: Session) -> list[str]:
    """Make what is above the facts of workers: they may write below it, not beside it. And take the
    services from workers, to whom an older version gave them all; each is then its own replicas'.

    Not those that have replicas now, which may be of that version and have nothing else to show:
    they would lose their service. Their names; the next coordinator that starts looks again.
    """
    if session.access is None:
        return []
    for path in (MODELS_PATH, SERVICES_PATH):
        session.nodes.ensure(path)
    if _has_workers(session, SERVICES_PATH):
        _close(session, SERVICES_PATH)
    left = []
    for name in session.nodes.children(SERVICES_PATH):
        top = f"{SERVICES_PATH}/{name}"
        if not _has_workers(session, top):
            continue
        if session.nodes.children(f"{top}/{REPLICAS_NAME}", fresh=True):
            left.append(name)
            continue
        for made in (REPLICAS_NAME, REPLICA_TURNS_NAME):
            session.nodes.ensure(f"{top}/{made}")
        # The service itself is the last: until then it is not finished.
        for path in (*_below(session, top), top):
            _close(session, path)
    return left


def _below(session: Session, top: str) -> list[str]:
    found = []
    for name in session.nodes.children(top):
        path = f"{top}/{name}"
        found += [*_below(session, path), path]
    return found


def _looked(session: Session, path: str) -> tuple[bool, list[str]]:
    """Whether a node is open to everybody, and what is directly below it."""
    return _is_open(session, path), session.nodes.children(path)


def _is_open(session: Session, path: str) -> bool:
    return any(entry.id.scheme == "world" for entry in _list_of(session, path))


def _has_workers(session: Session, path: str) -> bool:
    assert session.access is not None
    return any(entry.id.id == session.access.worker for entry in _list_of(session, path))


def _list_of(session: Session, path: str) -> list[ACL]:
    """Who may use a node; nobody, if it is not there."""
    nodes = session.nodes
    try:
        acl, _ = nodes.persist(
            lambda: nodes.client.get_acls_async(nodes.full(path)),
            f"read who may use {path}",
            passing=(kz.NoNodeError,),
        )
    except kz.NoNodeError:
        return []
    return list(acl)


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
