"""Errors of servers that speak RESP as errors of our tree: what may be tried again, what somebody
has to change."""

from __future__ import annotations

import ssl
from typing import Final

from redis import exceptions as raised

from holdfast.wire.errors import (
    Full,
    HoldfastError,
    Refused,
    TimedOut,
    Unavailable,
    Usage,
)

_REACH: Final = "look whether the server runs, and whether the address names it"
_REACH_OURS: Final = "look whether the server runs: holdfast status, and its log"
_LOGIN: Final = "look at the user and the password-file of the address"
_RIGHTS: Final = (
    "let this user run GET, MGET, GETRANGE, SET, TIME, EVAL, EVALSHA, SCAN, UNLINK and INFO on"
    " these keys: ACL SETUSER"
)
_MEMORY: Final = "give the server more memory (maxmemory), shorten a table's ttl, or forget a table"
_DISK: Final = "free space on the server's disk, and look at its log"

# What a conversation with a server may raise: redis-py's errors, the system's, and our own.
RAISED: Final = (raised.RedisError, OSError, HoldfastError)

# What an answer begins with, or what a script of ours was told in the middle of one.
_CODES: Final[dict[str, tuple[type[HoldfastError], str]]] = {
    "OOM": (Full, _MEMORY),
    "MISCONF": (Full, _DISK),
    "NOPERM": (Refused, _RIGHTS),
    "NOAUTH": (Refused, _LOGIN),
    "WRONGPASS": (Refused, _LOGIN),
    "READONLY": (Unavailable, "name the server that takes writes: this one is a replica"),
    "LOADING": (Unavailable, "wait until it has read what it has on disk"),
    "MASTERDOWN": (Unavailable, "wait until the replica has reached its primary"),
    "CLUSTERDOWN": (Unavailable, "wait until every slot has a primary: CLUSTER INFO says why"),
    "TRYAGAIN": (Unavailable, "try again: slots move"),
    "NOREPLICAS": (Unavailable, "wait until the replicas are back (min-replicas-to-write)"),
    "BUSY": (Unavailable, "wait for the script that runs there, or end it: SCRIPT KILL"),
    "WRONGTYPE": (Refused, "give Holdfast a prefix that nobody else uses: prefix= in the address"),
}
_KINDS: Final[tuple[tuple[type[Exception], str], ...]] = (
    (raised.OutOfMemoryError, "OOM"),
    (raised.NoPermissionError, "NOPERM"),
    (raised.AuthenticationError, "NOAUTH"),
    (raised.AuthenticationWrongNumberOfArgsError, "NOAUTH"),
    (raised.BusyLoadingError, "LOADING"),
    (raised.ReadOnlyError, "READONLY"),
    (raised.MasterDownError, "MASTERDOWN"),
    (raised.ClusterDownError, "CLUSTERDOWN"),
    (raised.TryAgainError, "TRYAGAIN"),
)
# Before Redis 7 the answer of a script begins with words of its own.
_INSIDE: Final = ("OOM", "MISCONF", "READONLY", "NOREPLICAS", "WRONGTYPE")


def translate(error: BaseException, what: str, server: str) -> HoldfastError:
    """The error of ours for one of redis-py."""
    if isinstance(error, HoldfastError):
        return error
    made = _made(error, what, server)
    made.__cause__ = error
    return made


def code_of(error: BaseException) -> str:
    """What the server calls it: `OOM`, `NOPERM`; "" if that is not known."""
    for kind, code in _KINDS:
        if isinstance(error, kind):
            return code
    text = str(error)
    first = text.partition(" ")[0]
    if first in _CODES:
        return first
    if "script" in text:
        return next((code for code in _INSIDE if f" {code} " in text or f"-{code} " in text), "")
    return ""


def _made(error: BaseException, what: str, server: str) -> HoldfastError:
    why = f"{server}: {error}"
    code = code_of(error)
    if code:
        kind, fix = _CODES[code]
        return kind(what, why=f"{server}: {code} {_without(str(error), code)}", fix=fix)
    if isinstance(error, (raised.TimeoutError, TimeoutError)):
        return TimedOut(what, why=why, fix="look whether the server is overloaded, or has stopped")
    if _is_certificate(error):
        return Refused(what, why=why, fix="look at ca, cert, key and verify of the address")
    if isinstance(error, (raised.ConnectionError, OSError)):
        return Unavailable(what, why=why, fix=_REACH_OURS if server[0] == "/" else _REACH)
    if "cluster support disabled" in str(error):
        return Usage(what, why=why, fix="leave cluster=yes out of the address")
    return Refused(what, why=why, fix="look at the server's log and its settings")


def _without(text: str, code: str) -> str:
    return text.removeprefix(f"{code} ")


def _is_certificate(error: BaseException) -> bool:
    """Whether TLS has failed for a reason that stays. redis-py gives it as its own words."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return True
        cause = cause.__cause__ or cause.__context__
    return "CERTIFICATE_VERIFY_FAILED" in str(error)
