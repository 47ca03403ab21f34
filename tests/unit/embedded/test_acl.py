"""Access control lists, as a real ZooKeeper 3.8.0 was seen to take and apply them."""

from __future__ import annotations

import pytest

from holdfast.coordination.embedded import protocol as p
from holdfast.coordination.embedded.acl import OPEN, fix_up, masked, permits
from holdfast.coordination.embedded.java_order import identity_order
from holdfast.coordination.embedded.protocol import OperationError
from holdfast.coordination.embedded.transactions import ACL, AuthIdentity

LOCAL = AuthIdentity("ip", "127.0.0.1")
ONE = AuthIdentity("digest", "u1:iMa4jTJUXtsOZxv2bTb8Lfyby5M=")
TWO = AuthIdentity("digest", "u2:2l09ebH09zjo01SLYZ6Ipq2SrYo=")


@pytest.mark.parametrize(
    ("scheme", "name"),
    [
        ("world", "anyone"),
        ("digest", "a:b"),
        ("digest", ":b"),
        ("digest", "a:b:"),
        ("ip", "127.0.0.1"),
        ("ip", "127.0.01.1/32"),
        ("ip", "127.0.0.0/+8"),
        ("ip", "0.0.0.0/0"),
    ],
)
def test_an_entry_that_zookeeper_takes_is_stored_as_it_is(scheme: str, name: str) -> None:
    acl = (ACL(5, scheme, name),)
    assert fix_up(acl, (LOCAL,)) == acl


@pytest.mark.parametrize(
    ("scheme", "name"),
    [
        ("world", "someone"),
        ("digest", ""),
        ("digest", "a"),
        ("digest", "a:"),
        ("digest", "a:b:c"),
        ("ip", "127.0.0"),
        ("ip", "127.0.0.256"),
        ("ip", "127.0.0.-1"),
        ("ip", "127.0.0. 1"),
        ("ip", "127.0.0.1/"),
        ("ip", "127.0.0.1/33"),
        ("ip", "::1"),
        ("ip", "1" * 5_000 + ".0.0.1"),
        ("super", "x"),
        ("sasl", "x"),
        ("x509", "x"),
        ("", ""),
    ],
)
def test_an_entry_that_zookeeper_refuses_is_an_invalid_acl(scheme: str, name: str) -> None:
    with pytest.raises(OperationError) as refusal:
        fix_up((ACL(31, scheme, name),), (LOCAL,))
    assert refusal.value.code == p.INVALID_ACL


@pytest.mark.parametrize("acl", [None, (), (ACL(31, "auth", ""),)])
def test_no_entry_and_auth_without_a_proven_identity_are_invalid(
    acl: tuple[ACL, ...] | None,
) -> None:
    with pytest.raises(OperationError) as refusal:
        fix_up(acl, (LOCAL,))
    assert refusal.value.code == p.INVALID_ACL


def test_duplicates_are_dropped_before_auth_is_expanded_and_not_after() -> None:
    twice = ACL(15, "world", "anyone")
    assert fix_up((twice, twice), ()) == (twice,)
    expanded = fix_up((ACL(3, "auth", ""), ACL(3, "auth", "x")), (LOCAL, ONE))
    assert expanded == (ACL(3, *ONE), ACL(3, *ONE))


def test_auth_is_expanded_in_the_order_of_zookeepers_hash_map() -> None:
    assert [one for one in identity_order((LOCAL, ONE, TWO)) if one != LOCAL] == [TWO, ONE]
    assert fix_up((ACL(8, "auth", ""),), (LOCAL, ONE, TWO)) == (ACL(8, *TWO), ACL(8, *ONE))


@pytest.mark.parametrize(
    ("pattern", "allowed"),
    [
        ("127.0.0.1", True),
        ("127.0.0.2", False),
        ("127.0.0.2/30", True),
        ("126.0.0.0/8", False),
        ("10.0.0.0/0", True),
    ],
)
def test_an_address_matches_by_its_leading_bits(pattern: str, allowed: bool) -> None:
    assert permits((ACL(1, "ip", pattern),), p.PERM_READ, (LOCAL,)) is allowed


def test_any_of_the_permissions_and_any_of_the_identities_is_enough() -> None:
    acl = (ACL(p.PERM_ADMIN, *ONE), ACL(p.PERM_CREATE, *TWO))
    assert permits(acl, p.PERM_READ | p.PERM_ADMIN, (LOCAL, ONE))
    assert not permits(acl, p.PERM_READ | p.PERM_ADMIN, (LOCAL, TWO))
    assert not permits(acl, p.PERM_DELETE, (ONE, TWO))
    assert permits(acl, p.PERM_DELETE, (AuthIdentity("super", ""),))
    assert permits(OPEN, p.PERM_ALL, ())


def test_a_mask_hides_digests_only() -> None:
    acl = (ACL(1, "digest", "u:a:b"), ACL(2, "ip", "127.0.0.1"), ACL(4, "world", "anyone"))
    assert masked(acl) == (ACL(1, "digest", "u:x"), acl[1], acl[2])
