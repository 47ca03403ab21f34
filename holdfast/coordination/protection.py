"""Access lists of a plane that was made open, and of what its workers need.

The embedded server closes its own tree when it starts (`embedded.closing`). An ensemble that others
use is closed from here: everything below the cluster's root, and nothing beside it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kazoo import exceptions as kz

from holdfast.coordination.kazoo_client import entries
from holdfast.wire.places import WORKER_PATHS

if TYPE_CHECKING:
    from holdfast.coordination.session import Session

_TOP: Final = "/holdfast"  # the root of a cluster that has no chroot


def close(session: Session) -> int:
    """Close what is open to everybody below the cluster's root. How many nodes were.

    The root is the last: while it is open somebody who was killed has not finished, and the next
    one goes on. So a plane that is closed costs one question.
    """
    if session.access is None:
        return 0
    top = "/" if session.chroot else _TOP
    return _closed(session, top) if _is_open(session, top) else 0


def ready_for_workers(session: Session) -> None:
    """Make what is above the facts of workers: they may write below it, not beside it."""
    if session.access is not None:
        for path in WORKER_PATHS:
            session.nodes.ensure(path)


def _closed(session: Session, top: str) -> int:
    """Nodes below first, so that a parent is closed only after all that is below it."""
    found, waiting = [], [top]
    while waiting:
        here = waiting.pop()
        found.append(here)
        waiting += [f"{here.rstrip('/')}/{name}" for name in session.nodes.children(here)]
    closed = 0
    for path in reversed(found):
        if _is_open(session, path):
            closed += _close(session, path)
    return closed


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
