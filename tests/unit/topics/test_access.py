"""Logins and access lists: who is let in, and what for."""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64decode, b64encode
from pathlib import Path

import pytest

from holdfast.system.listening import split_address, tls_context
from holdfast.topics.broker.core import sasl
from holdfast.topics.broker.core.acls import (
    ALLOW,
    DENY,
    Operation,
    Pattern,
    ResourceKind,
    allows,
    matches,
)
from holdfast.topics.broker.core.commands import Acl
from holdfast.topics.broker.main import BrokerOptions, read_users
from holdfast.topics.broker.users import Users
from holdfast.wire.errors import Refused, Usage

PASSWORDS = {"alice": "pencil", "bob": "pen,cil="}


# --- logins ---------------------------------------------------------------------------------------


def test_plain_takes_the_right_password_only() -> None:
    plain = sasl.Plain(PASSWORDS)
    plain.step(b"\0alice\0pencil")
    assert plain.user == "alice"
    for token in (b"\0alice\0wrong", b"\0nobody\0", b"bob\0alice\0pencil", b"alice\0pencil", b""):
        with pytest.raises(sasl.AuthenticationFailed):
            sasl.Plain(PASSWORDS).step(token)


class ScramClient:
    """The other side, written from RFC 5802."""

    def __init__(self, user: str, password: str, algorithm: str) -> None:
        self.password, self.algorithm = password, algorithm
        name = user.replace("=", "=3D").replace(",", "=2C")
        self.bare = f"n={name},r=clientnonce"

    def first(self) -> bytes:
        return b"n,," + self.bare.encode()

    def last(self, answer: bytes) -> bytes:
        fields = dict(part.split("=", 1) for part in answer.decode().split(","))
        assert fields["r"].startswith("clientnonce")
        salted = hashlib.pbkdf2_hmac(
            self.algorithm, self.password.encode(), b64decode(fields["s"]), int(fields["i"])
        )
        client_key = hmac.digest(salted, b"Client Key", self.algorithm)
        stored = hashlib.new(self.algorithm, client_key).digest()
        without = f"c=biws,r={fields['r']}"
        message = f"{self.bare},{answer.decode()},{without}".encode()
        signature = hmac.digest(stored, message, self.algorithm)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        server_key = hmac.digest(salted, b"Server Key", self.algorithm)
        self.expected = b"v=" + b64encode(hmac.digest(server_key, message, self.algorithm))
        return f"{without},p={b64encode(proof).decode()}".encode()


def server(algorithm: str) -> sasl.Scram:
    keys = {
        name: sasl.salted(password, b"salt-of-" + name.encode(), algorithm)
        for name, password in PASSWORDS.items()
    }
    return sasl.Scram(keys, algorithm, "servernonce", b"fake")


@pytest.mark.parametrize("algorithm", ["sha256", "sha512"])
@pytest.mark.parametrize("user", ["alice", "bob"])
def test_scram_lets_in_who_knows_the_password_and_shows_that_it_knows_it_too(
    algorithm: str, user: str
) -> None:
    scram, client = server(algorithm), ScramClient(user, PASSWORDS[user], algorithm)
    answer = scram.step(client.last(scram.step(client.first())))
    assert answer == client.expected
    assert scram.user == user


@pytest.mark.parametrize(("user", "password"), [("alice", "wrong"), ("nobody", "pencil")])
def test_scram_refuses_the_others_and_an_unknown_name_looks_like_a_known_one(
    user: str, password: str
) -> None:
    scram, client = server("sha256"), ScramClient(user, password, "sha256")
    first = scram.step(client.first())
    assert b",s=" in first
    with pytest.raises(sasl.AuthenticationFailed):
        scram.step(client.last(first))
    assert scram.user == ""


@pytest.mark.parametrize("token", [b"", b"n,,", b"p=tls,,n=a,r=b", b"n,a=bob,n=alice,r=x", b"\xff"])
def test_what_is_no_scram_is_refused(token: bytes) -> None:
    with pytest.raises((sasl.AuthenticationFailed, UnicodeDecodeError)):
        server("sha256").step(token)


def test_a_proof_of_another_conversation_is_refused() -> None:
    scram, client = server("sha256"), ScramClient("alice", "pencil", "sha256")
    last = client.last(scram.step(client.first()))
    again = sasl.Scram(scram._keys, "sha256", "othernonce", b"fake")
    again.step(client.first())
    with pytest.raises(sasl.AuthenticationFailed, match="does not belong"):
        again.step(last)


# --- users ----------------------------------------------------------------------------------------


def test_users_come_from_lines_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "users"
    path.write_text("# people\nalice pencil\n\nadmin secret super\n")
    users = Users.read(path)
    assert users.required
    assert users.is_super("User:admin")
    assert not users.is_super("User:alice")


@pytest.mark.parametrize("text", ["alice\n", "alice a b c\n", "alice pencil admin\n"])
def test_a_line_that_is_no_user_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "users"
    path.write_text(text)
    with pytest.raises(Refused, match="line 1"):
        Users.read(path)


def test_an_open_broker_is_for_loopback_only(tmp_path: Path) -> None:
    assert not read_users(BrokerOptions(tmp_path, "127.0.0.1:0")).required
    assert not read_users(BrokerOptions(tmp_path, "[::1]:0")).required
    with pytest.raises(Refused, match="needs users"):
        read_users(BrokerOptions(tmp_path, "0.0.0.0:9092"))
    empty = tmp_path / "users"
    empty.write_text("# nobody\n")
    with pytest.raises(Refused, match="no user"):
        read_users(BrokerOptions(tmp_path, "127.0.0.1:0", users=empty))


def test_addresses_and_tls_options_that_cannot_be_are_refused(tmp_path: Path) -> None:
    assert split_address("[::1]:90", "x") == ("::1", 90)
    assert split_address(":90", "x") == ("127.0.0.1", 90)
    for address in ("localhost", "a:b", "a:99999"):
        with pytest.raises(Usage):
            split_address(address, "x")
    with pytest.raises(Usage, match="certificate"):
        tls_context(None, tmp_path / "key", None, "x")
    with pytest.raises(Refused, match="TLS files"):
        tls_context(tmp_path / "cert", None, None, "x")


# --- the list -------------------------------------------------------------------------------------


def entry(
    operation: Operation,
    name: str = "t",
    *,
    permission: int = ALLOW,
    who: str = "User:alice",
    host: str = "*",
    pattern: Pattern = Pattern.LITERAL,
) -> Acl:
    return Acl(ResourceKind.TOPIC, name, pattern, who, host, operation, permission)


def may(acls: list[Acl], operation: Operation, name: str = "t", who: str = "User:alice") -> bool:
    return allows(acls, who, "10.0.0.1", operation, ResourceKind.TOPIC, name)


def test_nothing_that_matches_denies() -> None:
    assert not may([], Operation.READ)
    acls = [entry(Operation.READ)]
    assert may(acls, Operation.READ)
    assert not may(acls, Operation.WRITE)
    assert not may(acls, Operation.READ, "other")
    assert not may(acls, Operation.READ, who="User:bob")


def test_deny_beats_allow() -> None:
    acls = [entry(Operation.ALL), entry(Operation.WRITE, permission=DENY, who="User:*")]
    assert may(acls, Operation.READ)
    assert not may(acls, Operation.WRITE)


def test_who_may_do_something_may_look() -> None:
    for operation in (Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER):
        assert may([entry(operation)], Operation.DESCRIBE)
    assert may([entry(Operation.ALTER_CONFIGS)], Operation.DESCRIBE_CONFIGS)
    assert not may([entry(Operation.CREATE)], Operation.DESCRIBE)


def test_names_are_meant_as_they_are_or_as_beginnings() -> None:
    assert may([entry(Operation.READ, "*")], Operation.READ, "anything")
    prefixed = entry(Operation.READ, "logs.", pattern=Pattern.PREFIXED)
    assert may([prefixed], Operation.READ, "logs.a")
    assert not may([prefixed], Operation.READ, "metrics.a")
    assert not may([entry(Operation.READ, host="10.0.0.2")], Operation.READ)


def test_a_filter_means_what_it_names() -> None:
    acl = entry(Operation.READ, "logs.", pattern=Pattern.PREFIXED)

    def meant(**given: int | str | None) -> bool:
        fields: dict[str, int | str | None] = {
            "resource_type": 1,
            "resource_name": None,
            "pattern_type": 1,
            "principal": None,
            "host": None,
            "operation": 1,
            "permission": 1,
        }
        return matches(acl, **(fields | given))  # type: ignore[arg-type]

    assert meant()
    assert meant(resource_type=ResourceKind.TOPIC, principal="User:alice")
    assert not meant(resource_type=ResourceKind.GROUP)
    assert not meant(resource_name="logs.a")
    assert meant(resource_name="logs.a", pattern_type=Pattern.MATCH)
    assert not meant(pattern_type=Pattern.LITERAL)
    assert not meant(operation=Operation.WRITE)
    assert not meant(host="somewhere")
