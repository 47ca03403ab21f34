"""Asking again: what only reads always, what changes something once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast.topics.asking import ask_again, change
from holdfast.wire.errors import Conflict, HoldfastError, TimedOut, Unavailable

BROKE = Unavailable("the connection broke")
SOON_S = 60.0  # more than enough


class Cluster:
    """Answers each question with the next of these outcomes, and all further ones with the last."""

    def __init__(self, *outcomes: HoldfastError | str) -> None:
        self.outcomes = list(outcomes)
        self.asked = 0

    def __call__(self, left_s: float) -> str:
        assert left_s > 0
        self.asked += 1
        outcome = self.outcomes.pop(0) if len(self.outcomes) > 1 else self.outcomes[0]
        if isinstance(outcome, HoldfastError):
            raise outcome
        return outcome


def seen(*answers: bool) -> Callable[[], bool]:
    """What looks show, one after the other."""
    left = list(answers)
    return lambda: left.pop(0)


@pytest.mark.parametrize("broke", [BROKE, TimedOut("no answer")])
def test_what_breaks_off_is_asked_again(broke: HoldfastError) -> None:
    cluster = Cluster(broke, broke, "answer")
    assert ask_again(cluster, SOON_S) == "answer"
    assert cluster.asked == 3


def test_a_refusal_is_an_answer() -> None:
    cluster = Cluster(BROKE, Conflict("it is there"), "answer")
    with pytest.raises(Conflict):
        ask_again(cluster, SOON_S)
    assert cluster.asked == 2


def test_who_never_answers_is_given_up_with_the_last_reason() -> None:
    cluster = Cluster(BROKE, TimedOut("no answer"))
    with pytest.raises(TimedOut, match="no answer"):
        ask_again(cluster, 0.3)
    with pytest.raises(Unavailable, match="broke"):
        change(Cluster(BROKE), lambda: False, 0.3)


def test_what_was_done_though_its_answer_was_lost_is_not_asked_for_again() -> None:
    cluster = Cluster(BROKE, "done")
    change(cluster, seen(True), SOON_S)
    assert cluster.asked == 1


def test_what_was_not_done_is_asked_for_again() -> None:
    cluster = Cluster(BROKE, BROKE, "done")
    change(cluster, seen(False, False), SOON_S)
    assert cluster.asked == 3
    cluster = Cluster(BROKE, "done")
    change(cluster, None, SOON_S)
    assert cluster.asked == 2


def test_a_refusal_after_a_lost_answer_counts_unless_it_is_done_as_some_broker_knows_late() -> None:
    late = Cluster(BROKE, Conflict("it is there"))
    change(late, seen(False, False, True), SOON_S)
    for look in (None, lambda: False):
        with pytest.raises(Conflict):
            change(Cluster(BROKE, Conflict("it is there")), look, SOON_S)


def test_a_first_refusal_is_not_looked_at() -> None:
    with pytest.raises(Conflict):
        change(Cluster(Conflict("it is there")), seen(), SOON_S)
