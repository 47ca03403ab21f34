"""Who may do what: the schemes `world`, `auth`, `digest` and `ip`, as ZooKeeper decides them."""

from __future__ import annotations

import re
from typing import Final

from holdfast.coordination.embedded import protocol as p
from holdfast.coordination.embedded.java_order import identity_order
from holdfast.coordination.embedded.protocol import OperationError
from holdfast.coordination.embedded.transactions import ACL, AuthIdentity

ACLs = tuple[ACL, ...]
Identities = tuple[AuthIdentity, ...]

OPEN: Final[ACLs] = (ACL(p.PERM_ALL, "world", "anyone"),)
READ_ONLY: Final[ACLs] = (ACL(p.PERM_READ, "world", "anyone"),)

# Far more digits than any number needs: Java allows leading zeros, Python converts not any length.
_INTEGER: Final = re.compile(r"[+-]?\d{1,4000}")
# A Java dot stops at every line end.
_SECRET: Final = re.compile(":[^\n\r\x85\u2028\u2029]*")
_ADDRESS_BITS: Final = 32


def fix_up(acl: ACLs | None, identities: Identities) -> ACLs:
    """The list that is stored when a client asks for `acl`.

    Duplicates are dropped, `auth` becomes the asker's own proven identities. An empty list, an
    unknown scheme, an id that its scheme does not know, or `auth` without a proven identity is
    refused with INVALID_ACL.
    """
    if not acl:
        raise OperationError(p.INVALID_ACL)
    stored: list[ACL] = []
    for entry in dict.fromkeys(acl):
        scheme = entry.scheme
        if scheme == "auth":
            # An address proves nobody's identity, so only digests count.
            own = [i.id for i in identity_order(identities) if i.scheme == "digest"]
            if not own:
                raise OperationError(p.INVALID_ACL)
            stored.extend(ACL(entry.perms, "digest", name) for name in own)
        elif (
            (scheme == "world" and entry.id == "anyone")
            or (scheme == "digest" and _is_digest(entry.id))
            or (scheme == "ip" and _network(entry.id) is not None)
        ):
            stored.append(entry)
        else:
            raise OperationError(p.INVALID_ACL)
    return tuple(stored)


def permits(acl: ACLs, permission: int, identities: Identities) -> bool:
    """Whether one of the identities has one of the permissions."""
    if acl is OPEN:
        return True
    for identity in identities:
        if identity.scheme == "super":
            return True
    for perms, scheme, pattern in acl:
        if not perms & permission:
            continue
        if scheme == "world" and pattern == "anyone":
            return True
        for identity in identities:
            if identity.scheme == scheme and _matches(scheme, identity.id, pattern):
                return True
    return False


def masked(acl: ACLs) -> ACLs:
    """The list as it is shown to those who do not administer the node: without the digests."""
    return tuple(
        ACL(entry.perms, "digest", _SECRET.sub(":x", entry.id))
        if entry.scheme == "digest"
        else entry
        for entry in acl
    )


def _is_digest(pattern: str) -> bool:
    # Java's split drops empty parts at the end: "user:" has one part, "user:digest:" two.
    parts = pattern.split(":")
    while parts and not parts[-1]:
        parts.pop()
    return len(parts) == 2


def _matches(scheme: str, shown: str, pattern: str) -> bool:
    if scheme == "digest":
        return shown == pattern
    if scheme == "ip":
        network, address = _network(pattern), _address(shown)
        if network is None or address is None:
            return False
        wanted, bits = network
        ignored = _ADDRESS_BITS - bits
        return wanted >> ignored == address >> ignored
    return False


def _network(pattern: str) -> tuple[int, int] | None:
    """The address and the number of leading bits of `10.0.0.0/8`; None if it is no such thing."""
    text, slash, suffix = pattern.partition("/")
    address = _address(text)
    bits = _integer(suffix) if slash else _ADDRESS_BITS
    if address is None or bits is None or not 0 <= bits <= _ADDRESS_BITS:
        return None
    return address, bits


def _address(text: str) -> int | None:
    parts = [_integer(part) for part in text.split(".")]
    if len(parts) != 4:
        return None
    address = 0
    for part in parts:
        if part is None or not 0 <= part <= 255:
            return None
        address = address << 8 | part
    return address


def _integer(text: str) -> int | None:
    """A number as Java reads it: a sign and leading zeros are fine, blanks are not."""
    return int(text) if _INTEGER.fullmatch(text) else None
