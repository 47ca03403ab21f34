"""Pauses between tries."""

from __future__ import annotations

import pytest

from holdfast.system import backoff
from holdfast.system.backoff import Backoff


def test_a_pause_doubles_with_each_failure_up_to_the_longest() -> None:
    pauses = [backoff.pause_s(failures, 0.5, 3.0) for failures in range(6)]
    assert pauses == [0.0, 0.5, 1.0, 2.0, 3.0, 3.0]


@pytest.mark.parametrize("failures", [1_000, 10**9])
def test_what_fails_for_years_does_not_overflow(failures: int) -> None:
    assert backoff.pause_s(failures, 0.001, 60.0) == 60.0


def test_a_success_begins_anew() -> None:
    again = Backoff(1.0, 8.0)
    assert [again.failed(), again.failed(), again.failed()] == [1.0, 2.0, 4.0]
    again.succeeded()
    assert again.failed() == 1.0


def test_what_is_tried_at_once_pauses_only_when_it_fails_again() -> None:
    again = Backoff(1.0, 8.0, at_once=True)
    assert [again.failed(), again.failed(), again.failed()] == [0.0, 1.0, 2.0]
    again.succeeded()
    assert again.failed() == 0.0


def test_those_who_failed_together_come_back_within_the_second_half_of_the_pause() -> None:
    assert [backoff.spread(4.0, part) for part in (0.0, 0.5, 1.0)] == [2.0, 3.0, 4.0]
