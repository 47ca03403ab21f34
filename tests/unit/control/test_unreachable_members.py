"""Members that cannot reach each other: who goes, and who never does."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.control.decide.facts import (
    JobRecord,
    NodeFacts,
    ObservedState,
    Phase,
    Placement,
    RecordedStatus,
    View,
    WorkerFacts,
    WorkerPhase,
)
from holdfast.control.decide.membership import unreachable_members, wanted_members
from holdfast.control.decide.observed import ObservedJob, by_job, observe_job
from holdfast.control.decide.spec import JobSpec, Resources


def observed_job(
    suspects: Mapping[int, set[int]],
    *,
    members: int,
    stateless: frozenset[int] = frozenset(),
    leaving: frozenset[int] = frozenset(),
) -> ObservedJob:
    """Workers 1 to `members` in view 1, each saying whom it cannot reach."""
    everyone = range(1, members + 1)
    job = JobRecord(
        JobSpec("train", ("python",), lanes=members, workers_max=members),
        0.0,
        RecordedStatus(Phase.RUNNING, "on many", 0.0),
        next_worker=members + 1,
        placements=tuple(Placement(n, "n1", draining=n in leaving) for n in everyone),
        view=View(1, {n: (n - 1,) for n in everyone}),
    )
    facts = tuple(
        WorkerFacts(
            "train",
            n,
            WorkerPhase.RUNNING,
            1,
            None if n in stateless else 7,
            suspects=frozenset(suspects.get(n, ())),
        )
        for n in everyone
    )
    observed = ObservedState({"n1": NodeFacts("n1", Resources(cpu=99.0), facts)})
    return observe_job(job, by_job(observed)["train"], observed)


@pytest.mark.parametrize(
    ("suspects", "out"),
    [
        ({}, set()),
        ({1: {2}}, {2}),
        ({1: {2}, 2: {1}}, {2}),  # the higher number
        ({1: {2, 3}, 2: {1}, 3: {1}}, {1}),  # more accusers
        ({1: {3, 4}, 2: {3, 4}, 3: {1, 2}, 4: {1, 2}}, {3, 4}),  # halves
        ({1: {2}, 2: {3}, 3: {1}}, {2, 3}),  # a ring
        ({1: {1, 9}}, set()),  # itself, and somebody who is not there
    ],
)
def test_who_has_more_accusers_goes_and_among_equals_the_higher_number(
    suspects: Mapping[int, set[int]], out: set[int]
) -> None:
    assert unreachable_members(observed_job(suspects, members=4)).keys() == out


def test_the_reason_names_the_accusers() -> None:
    assert unreachable_members(observed_job({1: {3}, 2: {3}}, members=3)) == {
        3: "workers 1, 2 cannot reach it"
    }


def test_the_only_one_with_the_state_stays_and_its_accusers_go() -> None:
    seen = observed_job({2: {1}, 3: {1}}, members=3, stateless=frozenset({2, 3}))
    assert unreachable_members(seen).keys() == {2, 3}
    assert wanted_members(seen) == {1}


def test_one_that_leaves_anyway_does_not_count_as_one_who_keeps_the_state() -> None:
    seen = observed_job({2: {1}}, members=3, stateless=frozenset({3}), leaving=frozenset({2}))
    assert unreachable_members(seen).keys() == {2}
    assert 1 in wanted_members(seen)


numbers = st.integers(1, 6)


@given(
    st.dictionaries(numbers, st.sets(numbers)),
    st.frozensets(numbers),
    st.frozensets(numbers),
)
def test_somebody_always_stays_and_so_does_the_state(
    suspects: dict[int, set[int]], stateless: frozenset[int], leaving: frozenset[int]
) -> None:
    seen = observed_job(suspects, members=6, stateless=stateless, leaving=leaving)
    out = unreachable_members(seen).keys()
    assert seen.survivors - out
    if seen.holders:
        assert seen.holders - out
    if seen.holders - leaving:
        assert seen.holders - leaving - out
    # Of two who cannot reach each other at least one goes, so the others never wait for ever.
    for accuser, accused in suspects.items():
        assert accuser in out or accused & seen.survivors - {accuser} <= out
