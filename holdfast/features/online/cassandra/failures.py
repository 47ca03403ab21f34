"""What the driver raises, in the words of this house: may it be tried again, and did it happen?"""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from typing import Any, Final

import cassandra
from cassandra.cluster import NoHostAvailable
from cassandra.protocol import ErrorMessage, ProtocolException

from holdfast.wire.errors import (
    HoldfastError,
    Missing,
    Refused,
    TimedOut,
    Unavailable,
    Usage,
)

_LOOK: Final = "`holdfast features nodes` shows which nodes are away; then do it again"
_AGAIN: Final = "do it again: writing a row twice is harmless"
_UNKNOWN_TABLE: Final = ("unconfigured table", "does not exist", "unconfigured columnfamily")


def translate(error: BaseException, what: str, *, wrote_nothing: bool = False) -> HoldfastError:
    """The same error as one of ours. `wrote_nothing`: it is known that no copy has it."""
    if isinstance(error, HoldfastError):
        return error
    if isinstance(error, NoHostAvailable):
        return _nobody(error, what)
    if isinstance(error, cassandra.Unavailable):
        level = _level(error)
        why = (
            f"{error.required_replicas} copies have to answer ({level}), and"
            f" {error.alive_replicas} of them are on nodes that run"
        )
        return Unavailable(what, why=why + "; nothing was written" * wrote_nothing, fix=_LOOK)
    if isinstance(error, cassandra.WriteTimeout):
        why = f"{error.received_responses} of {error.required_responses} copies ({_level(error)})"
        return TimedOut(what, why=f"{why} answered in time: it may be written or not", fix=_AGAIN)
    if isinstance(error, cassandra.ReadTimeout):
        why = f"{error.received_responses} of {error.required_responses} copies ({_level(error)})"
        return TimedOut(what, why=f"{why} answered in time", fix=_LOOK)
    if isinstance(error, cassandra.OperationTimedOut):
        return TimedOut(what, why="no node answered in time", fix=_LOOK)
    if isinstance(error, cassandra.CoordinationFailure):
        return Unavailable(
            what, why=_text(error), fix="the logs of the nodes say why; then do it again"
        )
    return _judged(error, what)


def _judged(error: BaseException, what: str) -> HoldfastError:
    """An error that a node has answered with, or that the driver had with itself."""
    text = _text(error)
    if isinstance(error, cassandra.Unauthorized):
        return Refused(what, why=text, fix="let an administrator GRANT it to the address' user")
    if isinstance(error, cassandra.AuthenticationFailed):
        return Refused(what, why=text, fix="look at user= and the password that the address names")
    if isinstance(error, cassandra.InvalidRequest):
        if any(part in text for part in _UNKNOWN_TABLE):
            return Missing(what, why=text, fix="holdfast features apply makes it")
        return Refused(what, why=text, fix="the settings of the nodes say what they take")
    if _is_tls(error):
        return Refused(
            what,
            why=f"no TLS with them: {text}",
            fix="look at ca=, cert=, key= and verify= of the address, and at what the nodes speak",
        )
    if isinstance(error, ProtocolException):
        return Refused(what, why=text, fix="look at the version of the nodes: 4.0 or newer")
    if isinstance(error, ErrorMessage):
        return Unavailable(what, why=text, fix=_AGAIN)
    if "shut down" in text or "shutdown" in text:
        return closed()
    return Unavailable(what, why=text, fix=_LOOK)


def closed() -> Usage:
    return Usage("the store of features is closed", fix="open another one")


def _nobody(error: NoHostAvailable, what: str) -> HoldfastError:
    """No node did it. One that says no says more than those that are away."""
    found: dict[Any, BaseException] = error.errors if isinstance(error.errors, dict) else {}
    causes = list(found.values())
    for cause in _with_causes(causes):
        if _is_tls(cause):
            return translate(cause, what)
    for kind in (
        *(cassandra.AuthenticationFailed, cassandra.Unauthorized),
        *(cassandra.Unavailable, cassandra.CoordinationFailure),
        *(cassandra.WriteTimeout, cassandra.ReadTimeout),
    ):
        for cause in _with_causes(causes):
            if isinstance(cause, kind):
                return translate(cause, what)
    each = "; ".join(f"{_name(host)}: {_text(cause)}" for host, cause in list(found.items())[:5])
    return Unavailable(
        what,
        why=each or "no node of those that are asked here can be reached",
        fix="look whether the nodes run, and at the hosts and the data center of the address",
    )


def _with_causes(errors: Iterable[BaseException]) -> Iterable[BaseException]:
    for error in errors:
        each: BaseException | None = error
        while each is not None:
            yield each
            each = each.__cause__ or each.__context__


def _is_tls(error: BaseException) -> bool:
    """The driver makes another error of what TLS says, with its text in it."""
    return isinstance(error, ssl.SSLError) or "[SSL" in str(error)


def _name(host: Any) -> str:
    return str(getattr(host, "endpoint", host))


def _level(error: Any) -> str:
    return str(cassandra.ConsistencyLevel.value_to_name.get(error.consistency, error.consistency))


def _text(error: BaseException) -> str:
    """The error in its own words, which the driver wraps in codes."""
    message = getattr(error, "message", None)
    if isinstance(error, ErrorMessage) or not isinstance(message, str):
        message = getattr(error, "summary_msg", lambda: str(error))()
    text = str(message).replace("\n", " ").strip() or type(error).__name__
    return text.removeprefix("Error from server: ")[:500]
