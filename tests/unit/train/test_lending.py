"""Whose lanes others compute meanwhile."""

from __future__ import annotations

import itertools

from holdfast.train.sums.lending import LENT_STEPS, SLOW_STEPS, Lending

VIEW = {0: [0, 1, 2], 1: [3, 4], 2: [5, 6, 7]}
EVEN = {0: 30.0, 1: 30.0, 2: 31.0}
SLOW = {**EVEN, 1: 300.0}


def lanes(lending: Lending) -> list[int]:
    return sorted(lane for each in lending.dealt.values() for lane in each)


def taken(lending: Lending, took: dict[int, float], steps: int) -> None:
    """So many steps, in which whoever has lanes says what one took it."""
    for _ in range(steps):
        lending.take({worker: took[worker] for worker, held in lending.dealt.items() if held})
        assert lanes(lending) == list(range(8))


def test_where_nobody_is_slow_nothing_is_lent() -> None:
    lending = Lending(VIEW)
    taken(lending, EVEN, 1_000)
    assert lending.dealt == {worker: tuple(held) for worker, held in VIEW.items()}


def test_a_worker_that_was_slow_in_one_step_keeps_its_lanes() -> None:
    lending = Lending(VIEW)
    for _ in range(100):
        taken(lending, EVEN, SLOW_STEPS - 1)
        taken(lending, SLOW, 1)
    assert lending.dealt[1] == (3, 4)


def test_noise_of_short_steps_lends_nothing() -> None:
    lending = Lending(VIEW)
    taken(lending, {0: 0.5, 1: 8.0, 2: 0.5}, 100)
    assert lending.dealt[1] == (3, 4)


def test_the_lanes_of_a_slow_worker_go_to_those_who_are_through_first() -> None:
    lending = Lending(VIEW)
    taken(lending, SLOW, SLOW_STEPS)
    assert lending.dealt == {0: (0, 1, 2, 3), 1: (), 2: (4, 5, 6, 7)}


def test_a_worker_that_is_still_slow_is_asked_less_and_less_often() -> None:
    lending, asked = Lending(VIEW), []
    for step in range(200):
        taken(lending, SLOW, 1)
        if lending.dealt[1] and step >= SLOW_STEPS:
            assert lending.dealt[1] == (3,)
            asked.append(step)
    gaps = [later - earlier for earlier, later in itertools.pairwise(asked)]
    assert gaps[:2] == [2 * LENT_STEPS + 1, 4 * LENT_STEPS + 1]


def test_a_worker_that_is_fast_again_has_its_lanes_again() -> None:
    lending = Lending(VIEW)
    taken(lending, SLOW, SLOW_STEPS)
    taken(lending, EVEN, LENT_STEPS + 1)
    assert lending.dealt == {worker: tuple(held) for worker, held in VIEW.items()}


def test_everyone_who_hears_the_same_concludes_the_same() -> None:
    one, other = Lending(VIEW), Lending(dict(reversed(VIEW.items())))
    for step in range(100):
        took = {worker: 10.0 + 90 * ((step * 7 + worker * 13) % 5) for worker in VIEW}
        for lending in (one, other):
            lending.take({worker: took[worker] for worker, held in lending.dealt.items() if held})
        assert one.dealt == other.dealt


def test_two_workers_of_whom_one_is_slow_are_one_that_computes() -> None:
    lending = Lending({0: [0, 1], 1: [2, 3]})
    taken_from = {0: 400.0, 1: 40.0}
    for _ in range(SLOW_STEPS):
        lending.take(taken_from)
    assert lending.dealt == {0: (), 1: (0, 1, 2, 3)}
