"""kazoo's exceptions in our words. Nothing of kazoo leaves this package."""

from __future__ import annotations

from kazoo import exceptions as kz
from kazoo.handlers.threading import KazooTimeoutError

from holdfast.wire.errors import (
    BugError,
    Conflict,
    Full,
    HoldfastError,
    Refused,
    SessionLost,
    Unavailable,
    Usage,
)

REPLY_LOST = (
    kz.ConnectionLoss,
    kz.OperationTimeoutError,
    kz.SessionExpiredError,
    kz.SessionMovedError,
    KazooTimeoutError,
)
"""What stands for an answer that did not come: the request may have been done, or be done yet."""

_READ_AGAIN = "read it again and decide again"

_TABLE: tuple[tuple[type[Exception], type[HoldfastError], str, str], ...] = (
    (
        kz.NoAuthError,
        Refused,
        "no permission",
        "show the plane's secret, as a user who can read it: ?secret_file=FILE (for an embedded "
        "server: embedded:DIR, or DIR/access)",
    ),
    (
        kz.AuthFailedError,
        Refused,
        "the credentials were refused",
        "check secret_file=, or user= and password_env=",
    ),
    (kz.InvalidACLError, Refused, "the access list was refused", "connect with ?secret_file=…"),
    (kz.BadVersionError, Conflict, "somebody else changed it first", _READ_AGAIN),
    (kz.NodeExistsError, Conflict, "it exists already", _READ_AGAIN),
    (kz.NoNodeError, Conflict, "it does not exist", _READ_AGAIN),
    (kz.NotEmptyError, Conflict, "it has children", "remove them first"),
    (
        kz.NoChildrenForEphemeralsError,
        Usage,
        "it lies under an ephemeral node, which cannot have children",
        "choose another path",
    ),
    (kz.SessionExpiredError, SessionLost, "the session is over", "acquire again"),
    (kz.ConnectionLoss, Unavailable, "the connection was lost", "try again"),
    (kz.OperationTimeoutError, Unavailable, "the server took too long", "try again"),
    (kz.SessionMovedError, Unavailable, "the session moved to another server", "try again"),
    (kz.QuotaExceededError, Full, "a quota is reached", "remove what is not needed any more"),
    (kz.ThrottledOpError, Unavailable, "the server is overloaded", "try again later"),
    (
        kz.SystemZookeeperError,
        Unavailable,
        "the server could not do it",
        "look into the server's log; its disk may be full",
    ),
    (kz.BadArgumentsError, Usage, "the server found the path or a flag invalid", "check the name"),
    (kz.MarshallingError, Usage, "the server could not read the request", "make it smaller"),
)


def translated(error: Exception, doing: str) -> HoldfastError:
    """The error of ours that says that `doing` failed, and why."""
    for theirs, ours, why, fix in _TABLE:
        if isinstance(error, theirs):
            return ours(f"could not {doing}", why=why, fix=fix)
    return BugError(f"could not {doing}", why=f"unexpected answer {error!r}")
