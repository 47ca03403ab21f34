"""The handshake: both prove that they know the secret, for this call and no other."""

from __future__ import annotations

import os

import pytest

from holdfast.wire.errors import Refused
from holdfast.wire.handshake import ANYBODY, Called, Calling, Purpose

KEY = b"k" * 32
JOB = "job"


def calling(key: bytes = KEY, job: str = JOB, to: int = 0, worker: int = 1) -> Calling:
    return Calling(key, job, Purpose.MESH, worker, to, os.urandom(32))


def called(worker: int = 0, purpose: Purpose = Purpose.MESH) -> Called:
    return Called(KEY, JOB, purpose, worker, os.urandom(32))


@pytest.mark.parametrize("to", [0, ANYBODY])
def test_two_that_know_the_secret_know_each_other(to: int) -> None:
    one, other = calling(to=to), called()
    assert other.caller(one.prove(other.answer(one.opening))) == 1
    assert one.answered_by == 0


def test_the_secret_is_in_none_of_the_frames() -> None:
    one, other = calling(), called()
    answer = other.answer(one.opening)
    assert KEY not in one.opening + answer + one.prove(answer)


@pytest.mark.parametrize(
    "stranger",
    [calling(key=b"x" * 32), calling(job="another"), calling(worker=7)],
    ids=["another secret", "another job", "another worker's proof"],
)
def test_a_caller_without_the_secret_is_refused(stranger: Calling) -> None:
    other, member = called(), calling()
    answer = other.answer(stranger.opening)
    with pytest.raises(Refused):
        stranger.prove(answer)
        # With another worker's number all is right for that worker. A member's proof is not its.
        other.caller(member.prove(called().answer(member.opening)))


def test_an_impostor_that_answers_gets_no_proof() -> None:
    one = calling()
    impostor = Called(b"x" * 32, JOB, Purpose.MESH, 0, os.urandom(32))
    with pytest.raises(Refused):
        one.prove(impostor.answer(one.opening))


def test_a_recorded_conversation_is_of_no_use_to_either_side() -> None:
    one, other = calling(), called()
    answer = other.answer(one.opening)
    proof = one.prove(answer)
    again = called()
    again.answer(one.opening)
    with pytest.raises(Refused):
        again.caller(proof)
    with pytest.raises(Refused):
        calling().prove(answer)


def test_a_proof_counts_once() -> None:
    one, other = calling(), called()
    proof = one.prove(other.answer(one.opening))
    other.caller(proof)
    with pytest.raises(Refused):
        other.caller(proof)


def test_a_proof_of_one_side_is_none_of_the_other() -> None:
    one, other = calling(), called()
    answer = other.answer(one.opening)
    with pytest.raises(Refused):
        other.caller(answer[-32:])


def test_a_proof_before_an_opening_is_refused() -> None:
    with pytest.raises(Refused):
        called().caller(b"")


@pytest.mark.parametrize(
    ("other", "one"),
    [(called(worker=5), calling()), (called(purpose=Purpose.SHARD), calling())],
    ids=["another worker", "another purpose"],
)
def test_a_call_for_somebody_else_is_refused(other: Called, one: Calling) -> None:
    with pytest.raises(Refused):
        other.answer(one.opening)


@pytest.mark.parametrize("at", range(0, 54, 3))
def test_a_changed_byte_of_an_opening_is_noticed(at: int) -> None:
    one, other = calling(to=ANYBODY), called()
    changed = bytearray(one.opening)
    changed[at] ^= 1
    with pytest.raises(Refused):
        other.caller(one.prove(other.answer(bytes(changed))))
