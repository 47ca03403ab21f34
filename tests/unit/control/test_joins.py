"""Who may use a token for which name: the judgement, and its count in a plane."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.control.store.joins import TOKENS, Joins, KnownJoins, Use, judged
from holdfast.coordination import Facts, Session, connect
from holdfast.system.certificates import Authority
from holdfast.wire import tokens
from holdfast.wire.errors import Refused
from holdfast.wire.tokens import Token, TokenKind

NEW = KnownJoins((), None, lives=False, lived=False)
UNTIL_S = 1e12


def token(uses: int = 1, node: str | None = None, kind: TokenKind = TokenKind.JOIN) -> Token:
    return Token(kind, "reef", UNTIL_S, node, number="7", uses=uses)


def use(name: str = "n1", request: str = "r1", of: Token | None = None) -> Use:
    return Use(of or token(), name, request, of_node=True)


def test_the_first_use_counts_and_the_same_request_again_does_not() -> None:
    assert judged(use(), NEW)
    assert not judged(use(), KnownJoins((("r1", "n1"),), "r1", lives=False, lived=False))


def test_a_machine_that_asks_again_is_answered_also_when_it_lives_by_now() -> None:
    assert not judged(use(), KnownJoins((("r1", "n1"),), "r1", lives=True, lived=True))


@pytest.mark.parametrize(
    ("asked", "known", "says"),
    [
        (
            use(),
            KnownJoins((("r2", "n2"),), None, lives=False, lived=False),
            "used once, and was: by n2",
        ),
        (use(), KnownJoins((("r2", "n1"),), None, lives=False, lived=False), "by n1"),
        (use(), KnownJoins((), None, lives=True, lived=True), "belongs to one machine"),
        (use(of=token(node="n1")), KnownJoins((), None, lives=True, lived=True), "belongs to one"),
        (use(), KnownJoins((), None, lives=False, lived=True), "for new names only"),
        (use(), KnownJoins((), "r9", lives=False, lived=False), "for new names only"),
        (use(of=token(node="n2")), KnownJoins((), None, lives=False, lived=True), "new names only"),
        (use(of=Token(TokenKind.JOIN, "reef", UNTIL_S)), NEW, "older version"),
    ],
)
def test_what_is_refused_says_why(asked: Use, known: KnownJoins, says: str) -> None:
    with pytest.raises(Refused) as refused:
        judged(asked, known)
    assert says in refused.value.why


def test_a_token_of_that_very_name_takes_the_place_of_a_dead_node() -> None:
    assert judged(use(of=token(node="n1")), KnownJoins((), "r9", lives=False, lived=True))


def test_a_token_holds_no_number_twice(tmp_path: Path) -> None:
    authority = Authority.make(tmp_path / "authority", "reef")
    one, two = (tokens.read(tokens.join_token(authority, uses=3)) for _ in range(2))
    assert one.uses == 3
    assert one.number != two.number


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    with connect(f"embedded:{tmp_path}/plane?linger_s=1") as made:
        yield made


def test_of_many_who_show_one_token_at_once_to_two_coordinators_so_many_are_let_in(
    session: Session, tmp_path: Path
) -> None:
    let_in: list[str] = []
    start = threading.Barrier(8)
    with connect(f"embedded:{tmp_path}/plane?linger_s=1") as other:
        coordinators = (Joins(session), Joins(other))

        def join(number: int) -> None:
            start.wait()
            try:
                asked = use(f"n{number}", f"r{number}", token(uses=3))
                coordinators[number % 2].count(asked)
            except Refused:
                return
            let_in.append(f"n{number}")

        threads = [threading.Thread(target=join, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(let_in) == 3


def test_of_two_tokens_for_one_new_name_one_gives_it(session: Session) -> None:
    joins = Joins(session)
    joins.count(use(request="r1", of=token()))
    other = Token(TokenKind.JOIN, "reef", UNTIL_S, number="8", uses=1)
    with pytest.raises(Refused, match="was given to a machine before"):
        joins.count(use(request="r2", of=other))


def test_a_standby_token_is_counted_too_and_takes_no_name(session: Session) -> None:
    joins = Joins(session)
    standby = token(kind=TokenKind.STANDBY)
    joins.count(Use(standby, "c2", "a", of_node=False))
    joins.count(Use(standby, "c2", "a", of_node=False))
    with pytest.raises(Refused, match="standby token does not hold any more"):
        joins.count(Use(standby, "c2", "b", of_node=False))


def test_the_record_of_a_token_goes_when_it_has_ended_and_not_before(session: Session) -> None:
    now_s = [1000.0]
    joins = Joins(session, lambda: now_s[0])
    joins.count(use("n1", "r1", Token(TokenKind.JOIN, "reef", 2000.0, number="early", uses=1)))
    joins.count(use("n2", "r2", Token(TokenKind.JOIN, "reef", UNTIL_S, number="late", uses=1)))
    assert Facts(session).names(TOKENS) == ["early", "late"]
    now_s[0] = 3000.0
    joins.count(use("n3", "r3", Token(TokenKind.JOIN, "reef", UNTIL_S, number="new", uses=1)))
    assert Facts(session).names(TOKENS) == ["late", "new"]
