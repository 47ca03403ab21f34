"""Who may connect: names and passwords from a file, and the logins that are on their way.

A line of the file is a name, a password and perhaps a role: `super` may do everything, a `member`
everything to topics, groups and transactions that the access list does not deny, but not write to
those of the system itself. Whoever has no role may do what the access list says:

    alice  correct-horse-battery-staple
    admin  another-long-password  super

Without users everybody is let in and may do everything; that is for loopback only.
"""

from __future__ import annotations

import secrets
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from holdfast.system import logs
from holdfast.topics.broker.connection import KafkaConnection
from holdfast.topics.broker.core import acls, sasl
from holdfast.topics.broker.core.acls import Operation, Pattern, ResourceKind
from holdfast.topics.broker.core.commands import Acl
from holdfast.topics.broker.protocol.codes import ErrorCode, KafkaError
from holdfast.wire.errors import Refused

log = logs.get(__name__)

_LENGTH: Final = struct.Struct("!i")
_SALT_BYTES: Final = 16
SUPER: Final = "super"
MEMBER: Final = "member"
# What the system tells of itself: everybody may read it, and rely on who wrote it.
_OF_THE_SYSTEM: Final = (("holdfast.", Pattern.PREFIXED), ("model.updated", Pattern.LITERAL))
_CHANGES: Final = (
    *(Operation.WRITE, Operation.CREATE, Operation.DELETE),
    *(Operation.ALTER, Operation.ALTER_CONFIGS),
)


class Login:
    """A login in progress. `raw`: its tokens come bare, as before SaslAuthenticate."""

    __slots__ = ("conversation", "raw")

    def __init__(self, conversation: sasl.LoginConversation, raw: bool) -> None:
        self.conversation = conversation
        self.raw = raw


class Users:
    """The users of a broker; none: it is open."""

    def __init__(self, passwords: dict[str, str], roles: Mapping[str, str] | None = None) -> None:
        self._passwords = passwords
        given = (roles or {}).items()
        self._supers = frozenset(f"User:{name}" for name, role in given if role == SUPER)
        self._rules = {
            f"User:{name}": _rules_of_member(f"User:{name}")
            for name, role in given
            if role == MEMBER
        }
        self._fake = secrets.token_bytes(_SALT_BYTES)
        self._salted: dict[str, dict[str, sasl.Salted]] = {}

    @classmethod
    def read(cls, path: Path) -> Users:
        """The users of a file; `Refused` if it cannot be read, or has a line that is none."""
        passwords: dict[str, str] = {}
        roles: dict[str, str] = {}
        try:
            lines = path.read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise Refused(
                f"the users in {path} cannot be read", why=str(error), fix="check --sasl-users"
            ) from error
        for number, line in enumerate(lines, 1):
            words = line.split()
            if not words or words[0].startswith("#"):
                continue
            if len(words) not in (2, 3) or (len(words) == 3 and words[2] not in (SUPER, MEMBER)):
                raise Refused(
                    f"line {number} of {path} is not a user",
                    why=f"a line has a name, a password, and perhaps the word {SUPER} or {MEMBER}",
                    fix="see docs/topics.md",
                )
            passwords[words[0]] = words[1]
            if len(words) == 3:
                roles[words[0]] = words[2]
        return cls(passwords, roles)

    @property
    def required(self) -> bool:
        """Whether one must log in."""
        return bool(self._passwords)

    def is_super(self, principal: str) -> bool:
        return not self.required or principal in self._supers

    def rules(self, principal: str) -> tuple[Acl, ...]:
        """What its role adds to the access list."""
        return self._rules.get(principal, ())

    def begin(self, link: KafkaConnection, mechanism: str, *, raw: bool) -> None:
        """A client says how it will show who it is."""
        if not self.required:
            raise KafkaError(ErrorCode.ILLEGAL_SASL_STATE)
        if mechanism == sasl.PLAIN:
            link.auth = Login(sasl.Plain(self._passwords), raw)
        elif mechanism in sasl.SCRAMS:
            algorithm, nonce = sasl.SCRAMS[mechanism], secrets.token_urlsafe(18)
            keys = self._keys(algorithm)
            link.auth = Login(sasl.Scram(keys, algorithm, nonce, self._fake), raw)
        else:
            raise KafkaError(ErrorCode.UNSUPPORTED_SASL_MECHANISM)

    def _keys(self, algorithm: str) -> dict[str, sasl.Salted]:
        keys = self._salted.get(algorithm)
        if keys is None:
            keys = {
                name: sasl.salted(password, secrets.token_bytes(_SALT_BYTES), algorithm)
                for name, password in self._passwords.items()
            }
            self._salted[algorithm] = keys
        return keys

    def step(self, link: KafkaConnection, token: bytes) -> bytes:
        """What is answered to a token; `Failed`: it is nobody we know."""
        if not isinstance(link.auth, Login):
            raise KafkaError(ErrorCode.ILLEGAL_SASL_STATE)
        conversation = link.auth.conversation
        answer = conversation.step(token)
        if conversation.user:
            link.principal = f"User:{conversation.user}"
            link.auth = None
        return answer

    def takes_raw(self, link: KafkaConnection) -> bool:
        """Whether the next frame of a connection is a bare token."""
        return isinstance(link.auth, Login) and link.auth.raw

    def raw_token(self, link: KafkaConnection, token: bytes) -> None:
        """A bare token: it is answered by another one, or by the connection's end."""
        try:
            answer = self.step(link, token)
        except sasl.AuthenticationFailed as error:
            log.warning("a login failed", peer=link.peer, why=str(error))
            link.abort()
            return
        link.transport.write(_LENGTH.pack(len(answer)) + answer)


def _rules_of_member(principal: str) -> tuple[Acl, ...]:
    kinds = (ResourceKind.TOPIC, ResourceKind.GROUP, ResourceKind.TRANSACTIONAL_ID)
    may = [
        Acl(kind, acls.WILDCARD, Pattern.LITERAL, principal, "*", Operation.ALL, acls.ALLOW)
        for kind in kinds
    ]
    may_not = [
        Acl(ResourceKind.TOPIC, name, pattern, principal, "*", change, acls.DENY)
        for name, pattern in _OF_THE_SYSTEM
        for change in _CHANGES
    ]
    return (*may, *may_not)
