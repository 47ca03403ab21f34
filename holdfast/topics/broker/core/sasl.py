"""How a client shows who it is: PLAIN, and SCRAM of RFC 5802. Pure: chance is passed in."""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Final, NamedTuple, Protocol

PLAIN: Final = "PLAIN"
SCRAMS: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
MECHANISMS: Final = (PLAIN, *SCRAMS)
# Kafka's own least number of rounds; passwords of ours are long and random.
ITERATIONS: Final = 4096


class AuthenticationFailed(Exception):
    """The client has not shown to be who it says."""


class Salted(NamedTuple):
    """What a server keeps of a password."""

    salt: bytes
    stored_key: bytes
    server_key: bytes


def salted(password: str, salt: bytes, algorithm: str) -> Salted:
    """What SCRAM keeps of a password."""
    made = hashlib.pbkdf2_hmac(algorithm, password.encode(), salt, ITERATIONS)
    client_key = hmac.digest(made, b"Client Key", algorithm)
    stored = hashlib.new(algorithm, client_key).digest()
    return Salted(salt, stored, hmac.digest(made, b"Server Key", algorithm))


class LoginConversation(Protocol):
    """A login in progress. `user` is who it is, when it is over."""

    user: str

    def step(self, token: bytes) -> bytes:
        """The answer to what the client says; `AuthenticationFailed` ends it."""


class Plain:
    """Name and password in one message."""

    def __init__(self, passwords: Mapping[str, str]) -> None:
        self._passwords = passwords
        self.user = ""

    def step(self, token: bytes) -> bytes:
        parts = token.split(b"\0")
        if len(parts) != 3:
            raise AuthenticationFailed("a PLAIN message has three parts")
        acts_for, user, password = (part.decode("utf-8", "replace") for part in parts)
        held = self._passwords.get(user)
        good = hmac.compare_digest((held or "").encode(), password.encode())
        if held is None or not good or acts_for not in ("", user):
            raise AuthenticationFailed("the name or the password is wrong")
        self.user = user
        return b""


class Scram:
    """The password itself never travels, and the server shows that it knows it, too."""

    def __init__(self, keys: Mapping[str, Salted], algorithm: str, nonce: str, fake: bytes) -> None:
        self._keys = keys
        self._algorithm = algorithm
        self._nonce = nonce
        self._fake = fake  # the salt of users whom nobody knows: they look as others do
        self._first = b""
        self._name = ""
        self.user = ""

    def step(self, token: bytes) -> bytes:
        return self._last_step(token) if self._first else self._first_step(token)

    def _first_step(self, token: bytes) -> bytes:
        try:
            binding, acts_for, name, nonce = token.decode().split(",")[:4]
        except ValueError:
            raise AuthenticationFailed("the first message is not one of SCRAM") from None
        if binding not in ("n", "y") or not name.startswith("n=") or not nonce.startswith("r="):
            raise AuthenticationFailed("the first message is not one of SCRAM")
        self._name = name[2:].replace("=2C", ",").replace("=3D", "=")
        if acts_for not in ("", f"a={name[2:]}"):
            raise AuthenticationFailed("nobody may act for somebody else")
        bare = token[len(binding) + len(acts_for) + 2 :]
        self._header = f"{binding},{acts_for},".encode()
        self._nonce = nonce[2:] + self._nonce
        held = self._keys.get(self._name)
        salt = b64encode(held.salt if held else self._salt_of_nobody()).decode()
        answer = f"r={self._nonce},s={salt},i={ITERATIONS}".encode()
        self._first = bare + b"," + answer
        return answer

    def _salt_of_nobody(self) -> bytes:
        return hmac.digest(self._fake, self._name.encode(), "sha256")[:16]

    def _last_step(self, token: bytes) -> bytes:
        without_proof, found, proof = token.rpartition(b",p=")
        parts = without_proof.split(b",")
        wanted = [b"c=" + b64encode(self._header), b"r=" + self._nonce.encode()]
        if not found or parts[:2] != wanted:
            raise AuthenticationFailed("the last message does not belong to the first")
        held = self._keys.get(self._name)
        if held is None:
            raise AuthenticationFailed("the name or the password is wrong")
        message = self._first + b"," + without_proof
        signature = hmac.digest(held.stored_key, message, self._algorithm)
        try:
            shown = b64decode(proof, validate=True)
        except ValueError:
            raise AuthenticationFailed("the proof is not one") from None
        if len(shown) != len(signature):
            raise AuthenticationFailed("the name or the password is wrong")
        client_key = bytes(a ^ b for a, b in zip(shown, signature, strict=True))
        stored = hashlib.new(self._algorithm, client_key).digest()
        if not hmac.compare_digest(stored, held.stored_key):
            raise AuthenticationFailed("the name or the password is wrong")
        self.user = self._name
        return b"v=" + b64encode(hmac.digest(held.server_key, message, self._algorithm))
