"""What others may use, and what they may not see."""

from __future__ import annotations

import inspect
import socket
import time
from pathlib import Path

import pytest
from kazoo import exceptions as kz

import holdfast.coordination
from holdfast.coordination import connect
from holdfast.coordination.transaction import Transaction
from holdfast.coordination.translate import translated
from holdfast.wire import errors

SURFACE = {
    "ABSENT",
    "Barrier",
    "Config",
    "Contender",
    "DoubleBarrier",
    "Election",
    "Fact",
    "Facts",
    "Follow",
    "AcquiredLock",
    "Item",
    "Leader",
    "Leadership",
    "Lock",
    "Member",
    "MemberInfo",
    "Membership",
    "Mirror",
    "Mirrored",
    "Queue",
    "Semaphore",
    "Session",
    "SharedLock",
    "ElectionLoop",
    "SessionState",
    "Transaction",
    "Versioned",
    "connect",
    "document",
    "single",
}


def test_the_public_surface_is_this_and_nothing_else() -> None:
    assert set(holdfast.coordination.__all__) == SURFACE
    assert all(hasattr(holdfast.coordination, name) for name in SURFACE)


def test_every_error_of_kazoo_has_a_translation_of_ours() -> None:
    found: list[type[Exception]] = [
        kind
        for _, kind in inspect.getmembers(kz, inspect.isclass)
        if issubclass(kind, Exception) and issubclass(kind, kz.ZookeeperError)
    ]
    assert len(found) > 20
    for kind in found:
        ours = translated(kind(), "do it")
        assert isinstance(ours, errors.HoldfastError)
        assert "could not do it" in str(ours)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (kz.NoAuthError, errors.Refused),
        (kz.BadVersionError, errors.Conflict),
        (kz.NodeExistsError, errors.Conflict),
        (kz.ConnectionLoss, errors.Unavailable),
        (kz.SessionExpiredError, errors.SessionLost),
        (kz.ConnectionClosedError, errors.SessionLost),
        (kz.QuotaExceededError, errors.Full),
        (kz.RuntimeInconsistency, errors.BugError),
    ],
)
def test_an_error_says_whether_to_try_again(
    theirs: type[Exception], ours: type[errors.HoldfastError]
) -> None:
    assert type(translated(theirs(), "do it")) is ours


def test_a_plane_that_is_not_there_is_unavailable_with_each_servers_reason() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        quiet = silent.getsockname()[1]
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            refusing = closed.getsockname()[1]
            began_s = time.monotonic()
            with pytest.raises(errors.Unavailable) as unavailable:
                connect(f"zk://127.0.0.1:{refusing},127.0.0.1:{quiet}", timeout_s=0.5)
    said = str(unavailable.value)
    assert f"127.0.0.1:{refusing}: " in said
    assert "refused" in said
    assert f"127.0.0.1:{quiet}: it accepts connections and does not answer" in said
    assert "holdfast coord status" in said
    assert time.monotonic() - began_s < 60


def test_a_time_out_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(errors.Usage):
        connect(f"embedded:{tmp_path}", timeout_s=0)


def test_a_transaction_is_bounded_and_used_once() -> None:
    transaction = Transaction(lambda ops: 1)
    with pytest.raises(errors.Usage):
        transaction.create("/x", b"x" * 1_000_000)
    with pytest.raises(errors.Usage):
        transaction.create("x", b"")
    transaction.commit()
    with pytest.raises(errors.Usage):
        transaction.commit()
