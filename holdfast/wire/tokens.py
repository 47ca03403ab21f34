"""Tokens: short texts, signed by the cluster's authority, that end.

A *join* token lets a machine ask for its first certificate, a *standby* token for the authority
itself: whoever got that may coordinate, and let machines in, for ever. Both carry the authority's
own certificate, so that the machine knows whom it may trust before it has spoken to anybody; so
they must be passed on over a channel that nobody else reads or changes. A *member* token comes with
each certificate, ends with it, and accompanies every call: a certificate alone opens nothing.

A join or standby token has a number of its own and says how often it may be used, once unless its
maker said more. Coordinators count the uses in the plane (`holdfast.control.store.joins`).

A token is a secret as long as it holds. It is never part of an error or a log line.
"""

from __future__ import annotations

import base64
import binascii
import json
import secrets
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any, Final, Protocol

from holdfast.wire.errors import Refused, Usage
from holdfast.wire.limits import JOIN_TOKEN_S
from holdfast.wire.names import checked_name

# A join token is copied by hand, and then used.
JOIN_TOKEN_S_MAX: Final = 7 * 24 * 3_600.0
# Enough for a rack that is set up at once; each use is written into one record.
JOIN_TOKEN_USES_MAX: Final = 1_000
# A token with the authority's certificate in it has about a thousand characters.
TOKEN_CHARACTERS_MAX: Final = 8_192

_PREFIX: Final = "holdfast1"
# In front of what is signed: nothing else that the authority signs can be taken for a token.
_DOMAIN: Final = b"holdfast token 1\n"
_NUMBER_BYTES: Final = 16


class Verifier(Protocol):
    """Whoever can tell whether the cluster's authority signed something, and what time it is."""

    cluster: str

    def signed(self, payload: bytes, signature: bytes) -> bool: ...

    def now_s(self) -> float: ...


class Signer(Verifier, Protocol):
    """The cluster's authority (`system.certificates`)."""

    trust_pem: bytes

    def signature(self, payload: bytes) -> bytes: ...


class TokenKind(Enum):
    JOIN = "join"
    MEMBER = "member"
    STANDBY = "standby"


@dataclass(frozen=True, slots=True)
class ClusterAddress:
    """Where a cluster is: who lets machines in, and what they need to know then."""

    join_endpoints: tuple[str, ...]
    coordination: str
    store: str


@dataclass(frozen=True, slots=True)
class Token:
    """What a token says. `node` None: any node whose name is new. `trust_pem`, `place`, `number`
    and `uses` are not in member tokens."""

    kind: TokenKind
    cluster: str
    until_s: float
    node: str | None = None
    trust_pem: bytes = b""
    place: ClusterAddress | None = None
    number: str = ""
    uses: int = 0


def join_token(
    authority: Signer,
    life_s: float = JOIN_TOKEN_S,
    node: str | None = None,
    place: ClusterAddress | None = None,
    kind: TokenKind = TokenKind.JOIN,
    uses: int = 1,
) -> str:
    """A token with which so many machines (or only `node`) may join, or stand by, for so long."""
    if not 0 < life_s <= JOIN_TOKEN_S_MAX:
        raise Usage(
            f"a {kind.value} token cannot hold for {life_s:g} s",
            why=f"at most {JOIN_TOKEN_S_MAX:g} s: whoever finds it may join",
            fix="make a shorter one, and a new one when it is needed",
        )
    if not 1 <= uses <= JOIN_TOKEN_USES_MAX:
        raise Usage(
            f"a {kind.value} token cannot be used {uses} times",
            why=f"from once to {JOIN_TOKEN_USES_MAX} times: whoever finds it may join",
            fix="holdfast token --uses 10",
        )
    if node is not None:
        checked_name("node", node)
    until_s = authority.now_s() + life_s
    trust_pem = authority.trust_pem
    number = secrets.token_hex(_NUMBER_BYTES)
    said = Token(kind, authority.cluster, until_s, node, trust_pem, place, number, uses)
    return _made(authority, said)


def member_token(authority: Signer, node: str, until_s: float) -> str:
    """The token that goes with a node's certificate."""
    return _made(authority, Token(TokenKind.MEMBER, authority.cluster, until_s, node))


def read(text: str) -> Token:
    """What a token says, unchecked: for the machine that was given it."""
    return _parsed(text)[0]


def check(authority: Verifier, text: str, kind: TokenKind, node: str) -> Token:
    """The token, if `node` may use it for this now; `Refused` says why not, but not the token."""
    if not text:
        raise _refused("there is none", kind)
    try:
        token, payload, signature = _parsed(text)
    except Refused as error:
        raise _refused(error.why, kind) from None
    # The cluster first: a token of another cluster is an honest mistake, and its signature is
    # never ours. Nothing is granted before the signature was checked.
    if token.cluster != authority.cluster:
        raise _refused(f"it is for cluster {token.cluster!r}, not {authority.cluster!r}", kind)
    if not authority.signed(_DOMAIN + payload, signature):
        raise _refused("it was not made by this cluster's authority", kind)
    if token.kind is not kind:
        raise _refused(f"it is a {token.kind.value} token", kind)
    if authority.now_s() >= token.until_s:
        raise _refused(f"it ended {authority.now_s() - token.until_s:.0f} s ago", kind)
    if token.node is not None and token.node != node:
        raise _refused(f"it is for node {token.node!r}, not {node!r}", kind)
    return token


def _refused(why: str, kind: TokenKind) -> Refused:
    fix = {
        TokenKind.JOIN: "ask a coordinator's machine for a new token, and join with it",
        TokenKind.MEMBER: "join this machine to the cluster again, with a new join token",
        TokenKind.STANDBY: "ask a coordinator's machine for one: holdfast token --standby",
    }[kind]
    return Refused(f"this {kind.value} token does not hold", why=why, fix=fix)


def _made(authority: Signer, token: Token) -> str:
    body: dict[str, Any] = {
        "kind": token.kind.value,
        "cluster": token.cluster,
        "until_s": token.until_s,
    }
    if token.node is not None:
        body["node"] = token.node
    if token.trust_pem:
        body["trust"] = token.trust_pem.decode()
    if token.place is not None:
        body["place"] = asdict(token.place)
    if token.number:
        body |= {"number": token.number, "uses": token.uses}
    payload = json.dumps(body, separators=(",", ":")).encode()
    signature = authority.signature(_DOMAIN + payload)
    return f"{_PREFIX}.{_encoded(payload)}.{_encoded(signature)}"


def _parsed(text: str) -> tuple[Token, bytes, bytes]:
    if len(text) > TOKEN_CHARACTERS_MAX:
        raise _no_token(f"it has {len(text)} characters")
    pieces = text.strip().split(".")
    if len(pieces) != 3 or pieces[0] != _PREFIX:
        raise _no_token("it does not begin and end as a token does")
    payload, signature = _decoded(pieces[1]), _decoded(pieces[2])
    try:
        body = json.loads(payload)
        token = _token_of(**body)
    except (ValueError, TypeError, RecursionError, OverflowError):
        token = None  # the error would quote the token
    if token is None:
        raise _no_token("it is damaged, or of another version")
    return token, payload, signature


def _token_of(
    kind: str,
    cluster: str,
    until_s: float,
    node: str | None = None,
    trust: str = "",
    place: dict[str, Any] | None = None,
    number: str = "",
    uses: int = 0,
) -> Token:
    """Unknown and missing keys are a TypeError of the call."""
    name = None if node is None else str(node)
    where = None if place is None else _place_of(**place)
    trust_pem, until = str(trust).encode(), float(until_s)
    return Token(
        TokenKind(kind), str(cluster), until, name, trust_pem, where, str(number), int(uses)
    )


def _place_of(
    coordination: str,
    store: str,
    join_endpoints: list[str] | None = None,
    doors: list[str] | None = None,  # as a version before has called them
) -> ClusterAddress:
    endpoints = tuple(map(str, join_endpoints or doors or ()))
    return ClusterAddress(endpoints, str(coordination), str(store))


def _no_token(why: str) -> Refused:
    return Refused(
        "this is not a token", why=why, fix="copy the whole token, from its first letter"
    )


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise _no_token("it is damaged, or cut short") from None
