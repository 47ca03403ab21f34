"""Tokens hold for one cluster, one purpose and a while; and they are not told on."""

from __future__ import annotations

import base64
import json
import traceback
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.system.certificates import Authority
from holdfast.wire import tokens
from holdfast.wire.errors import Refused, Usage
from holdfast.wire.tokens import TokenKind


class Hand:
    """A clock that is moved by hand."""

    now_s = 1_000_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Hand:
    return Hand()


@pytest.fixture
def authority(tmp_path: Path, clock: Hand) -> Authority:
    return Authority.make(tmp_path / "authority", "reef", clock)


def test_a_join_token_holds_until_it_ends(authority: Authority, clock: Hand) -> None:
    token = tokens.join_token(authority, life_s=60.0)
    clock.now_s += 59.0
    assert tokens.check(authority, token, TokenKind.JOIN, "n1").cluster == "reef"
    clock.now_s += 1.0
    with pytest.raises(Refused, match="ended 0 s ago"):
        tokens.check(authority, token, TokenKind.JOIN, "n1")


def test_a_join_token_says_whom_to_trust(authority: Authority) -> None:
    found = tokens.read(tokens.join_token(authority) + "\n")
    assert (found.trust_pem, found.cluster) == (authority.trust_pem, "reef")


def test_a_token_for_one_node_lets_no_other_in(authority: Authority) -> None:
    token = tokens.join_token(authority, node="n1")
    tokens.check(authority, token, TokenKind.JOIN, "n1")
    with pytest.raises(Refused, match="for node 'n1', not 'n2'"):
        tokens.check(authority, token, TokenKind.JOIN, "n2")


def test_a_token_of_another_kind_does_not_hold(authority: Authority, clock: Hand) -> None:
    member = tokens.member_token(authority, "n1", clock.now_s + 10)
    tokens.check(authority, member, TokenKind.MEMBER, "n1")
    with pytest.raises(Refused, match="is a member token"):
        tokens.check(authority, member, TokenKind.JOIN, "n1")
    with pytest.raises(Refused, match="is a join token"):
        tokens.check(authority, tokens.join_token(authority), TokenKind.MEMBER, "n1")


def test_a_token_of_another_cluster_does_not_hold(authority: Authority, tmp_path: Path) -> None:
    for name, why in (("atoll", "for cluster 'atoll'"), ("reef", "not made by")):
        other = Authority.make(tmp_path / f"other-{name}", name)
        with pytest.raises(Refused, match=why):
            tokens.check(authority, tokens.join_token(other), TokenKind.JOIN, "n1")


def test_what_a_token_says_cannot_be_changed(authority: Authority) -> None:
    prefix, payload, signature = tokens.join_token(authority, life_s=1.0).split(".")
    body = json.loads(base64.urlsafe_b64decode(payload + "=="))
    body["until_s"] += 1e6
    changed = base64.urlsafe_b64encode(json.dumps(body).encode()).rstrip(b"=").decode()
    with pytest.raises(Refused, match="not made by"):
        tokens.check(authority, f"{prefix}.{changed}.{signature}", TokenKind.JOIN, "n1")


@given(st.text(max_size=100) | st.text("holdfast1.AB_-=", max_size=60).map("holdfast1.".__add__))
def test_any_text_is_refused_and_not_repeated(text: str) -> None:
    try:
        tokens.read(text)
    except Refused as refusal:
        assert refusal.fix
        if len(text) > 20:
            assert text not in "".join(traceback.format_exception(refusal))
    else:
        raise AssertionError("a text by chance is no token")


@pytest.mark.parametrize("body", ["[]", "{}", '"x"', "9" * 5000, "[" * 5000, '{"kind": "join"}'])
def test_a_token_with_a_strange_body_is_refused(authority: Authority, body: str) -> None:
    payload = base64.urlsafe_b64encode(body.encode()).rstrip(b"=").decode()
    with pytest.raises(Refused):
        tokens.check(authority, f"holdfast1.{payload}.AAAA", TokenKind.JOIN, "n1")


def test_a_missing_and_a_huge_token_are_refused(authority: Authority) -> None:
    for text in ("", "holdfast1." + "A" * 100_000):
        with pytest.raises(Refused):
            tokens.check(authority, text, TokenKind.JOIN, "n1")


def test_a_join_token_cannot_hold_for_ever(authority: Authority) -> None:
    for life_s in (0.0, -1.0, 1e9, float("inf"), float("nan")):
        with pytest.raises(Usage):
            tokens.join_token(authority, life_s=life_s)
