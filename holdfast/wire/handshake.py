"""How two processes of a job prove to each other that they belong to it, before anything else.

Both know the job's secret; neither says it. Three frames of a fixed size:

    caller   opening   what it calls for, who it is, whom it calls, a nonce
    called   answer    who it is, a nonce of its own, a proof
    caller   proof

A proof is an HMAC-SHA256 over which side makes it, the job, what for, both workers and both nonces.
So a recorded conversation is of no use later (the other side's nonce is new), nor is the proof of
one side for the other, nor that for one worker, job or purpose for another. Nobody else's byte is
read beyond the frame that is expected, and none makes us allocate more than that.

Pure: bytes in, bytes out. Nonces come from the caller of these functions.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from enum import IntEnum
from typing import Final

from holdfast.wire.errors import Refused

_MAGIC: Final = b"HFk\n"
_VERSION: Final = 1
NONCE_BYTES: Final = 32
_PROOF_BYTES: Final = hashlib.sha256().digest_size
_OPENING: Final = struct.Struct(f"<4sBBQQ{NONCE_BYTES}s")  # version, purpose, caller, called, nonce
_ANSWER: Final = struct.Struct(f"<4sQ{NONCE_BYTES}s{_PROOF_BYTES}s")  # called, nonce, proof
OPENING_BYTES: Final = _OPENING.size
ANSWER_BYTES: Final = _ANSWER.size
PROOF_BYTES: Final = _PROOF_BYTES
# Whoever answers: a caller that knows an address, and not whose it is.
ANYBODY: Final = 2**64 - 1
# The name in the certificates of a job's processes (`job_certificates`): none has one of its own.
MEMBER_HOST: Final = "member.holdfast.internal"
# The first byte of a connection that begins with TLS instead: no frame of ours begins so.
TLS_FIRST_BYTE: Final = 0x16


class Purpose(IntEnum):
    """What a connection is for: a proof for one is none for another."""

    MESH = 1  # the members of a view
    SHARD = 2  # the servers of the asynchronous mode


def derived(secret: bytes, label: str) -> bytes:
    """A key of its own for each use of a secret."""
    return hmac.digest(secret, f"holdfast {label}".encode(), "sha256")


class Calling:
    """The caller's side."""

    def __init__(
        self, key: bytes, job: str, purpose: Purpose, worker: int, to: int, nonce: bytes
    ) -> None:
        self._key, self._job, self._purpose = key, job, purpose
        self._worker, self._to, self._nonce = worker, to, nonce
        self.answered_by: int | None = None
        self.opening: Final = _OPENING.pack(_MAGIC, _VERSION, purpose, worker, to, nonce)

    def prove(self, answer: bytes | bytearray) -> bytes:
        """The proof to send, once the other side has proven itself. `Refused`: it has not."""
        magic, called, nonce, proof = _ANSWER.unpack(answer)
        if magic != _MAGIC:
            raise stranger(f"it answers with {bytes(answer[:8])!r}")
        if self._to not in (called, ANYBODY):
            raise stranger(f"worker {called} answers where worker {self._to} was called")
        sides = (self._worker, self._to, called, self._nonce, nonce)
        if not hmac.compare_digest(proof, self._proof(b"called", *sides)):
            raise stranger(f"what answers does not know the secret of job {self._job!r}")
        self.answered_by = called
        return self._proof(b"caller", *sides)

    def _proof(self, side: bytes, *about: int | bytes) -> bytes:
        return _proof(self._key, side, self._job, self._purpose, *about)


class Called:
    """The side of whoever is called."""

    def __init__(self, key: bytes, job: str, purpose: Purpose, worker: int, nonce: bytes) -> None:
        self._key, self._job, self._purpose = key, job, purpose
        self._worker, self._nonce = worker, nonce
        self._expected = b""
        self._caller = 0

    def answer(self, opening: bytes | bytearray) -> bytes:
        """What to answer to an opening. `Refused`: it is none, or not for us."""
        magic, version, purpose, caller, to, nonce = _OPENING.unpack(opening)
        if magic != _MAGIC:
            raise stranger(f"it begins with {bytes(opening[:8])!r}")
        if version != _VERSION:
            raise stranger(f"it speaks version {version}, and we {_VERSION}")
        if purpose != self._purpose or to not in (self._worker, ANYBODY):
            raise stranger(f"it looks for worker {to}, for purpose {purpose}")
        sides = (caller, to, self._worker, nonce, self._nonce)
        self._caller = caller
        self._expected = _proof(self._key, b"caller", self._job, self._purpose, *sides)
        proof = _proof(self._key, b"called", self._job, self._purpose, *sides)
        return _ANSWER.pack(_MAGIC, self._worker, self._nonce, proof)

    def caller(self, proof: bytes | bytearray) -> int:
        """Who calls, now that it has proven itself. `Refused`: it has not."""
        if not self._expected or not hmac.compare_digest(proof, self._expected):
            raise stranger(f"it does not know the secret of job {self._job!r}")
        self._expected = b""
        return self._caller


def stranger(why: str) -> Refused:
    return Refused(
        "somebody else's connection came to a worker's port",
        why=why,
        fix="let nothing but the workers of this cluster reach their ports",
    )


def _proof(
    key: bytes,
    side: bytes,
    job: str,
    purpose: Purpose,
    caller: int | bytes,
    to: int | bytes,
    called: int | bytes,
    nonce: int | bytes,
    other_nonce: int | bytes,
) -> bytes:
    """Each part with its length before it: no two different things are spelled the same."""
    spelled = hmac.new(key, digestmod="sha256")
    for part in (side, job, int(purpose), caller, to, called, nonce, other_nonce):
        data = part if isinstance(part, bytes) else str(part).encode()
        spelled.update(struct.pack("<I", len(data)) + data)
    return spelled.digest()
