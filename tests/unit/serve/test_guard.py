"""The secret that replicas ask for, also when it changes."""

from __future__ import annotations

from holdfast.serve.guard import SERVICE_SECRET_GRACE_S, Guard, new_secret
from holdfast.serve.records import ServiceSpec


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_a_replica_that_starts_asks_for_the_secret_at_once() -> None:
    guard = Guard(Clock())
    guard.configure("secret")
    assert guard.admits(b"secret")
    assert not guard.admits(None) and not guard.admits(b"") and not guard.admits(b"secre")


def test_a_service_that_gets_a_secret_while_it_is_served_drops_nobody() -> None:
    clock = Clock()
    guard = Guard(clock)
    guard.configure("")
    assert guard.admits(None)
    guard.configure("secret")
    assert guard.admits(None) and guard.admits(b"secret"), "a gateway has not heard of it yet"
    clock.now_s += SERVICE_SECRET_GRACE_S
    guard.configure("secret")
    assert not guard.admits(None) and guard.admits(b"secret")


def test_while_a_secret_changes_both_count_and_nothing_else() -> None:
    clock = Clock()
    guard = Guard(clock)
    guard.configure("old")
    guard.configure("new")
    assert guard.admits(b"old") and guard.admits(b"new")
    assert not guard.admits(None) and not guard.admits(b"other")
    clock.now_s += SERVICE_SECRET_GRACE_S
    assert not guard.admits(b"old") and guard.admits(b"new")


def test_secrets_differ_and_do_not_print() -> None:
    one = new_secret()
    assert one != new_secret() and len(one) == 64
    assert one not in repr(ServiceSpec("s", "m", "1", secret=one))
