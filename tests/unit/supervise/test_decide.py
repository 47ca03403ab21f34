"""When a process that died is started again, and when it is given up."""

from __future__ import annotations

import signal

from holdfast.supervise.decide import (
    KEEP_FAULTS_MAX,
    KEEP_PAUSE_S,
    KEEP_PAUSE_S_MAX,
    Care,
    ProcessDeath,
    after,
)
from holdfast.wire.errors import Full
from holdfast.wire.limits import KEEP_STEADY_S

KILLED = ProcessDeath(0.0, -signal.SIGKILL)
REFUSED = ProcessDeath(
    0.0, 2, in_order=True, words="--listen 1.2.3.4: this machine cannot listen there"
)


def deaths(count: int, death: ProcessDeath, care: Care | None = None) -> Care:
    found = care or Care()
    for _ in range(count):
        found = after(found, death)
    return found


def test_the_first_death_waits_for_nothing_and_each_one_after_it_twice_as_long_up_to_a_bound() -> (
    None
):
    pauses = [deaths(count, KILLED).pause_s for count in range(1, 12)]
    assert pauses[:4] == [0.0, KEEP_PAUSE_S, 2 * KEEP_PAUSE_S, 4 * KEEP_PAUSE_S]
    assert pauses[-1] == KEEP_PAUSE_S_MAX


def test_one_that_ends_by_itself_again_and_again_is_given_up_with_its_last_words() -> None:
    assert not deaths(KEEP_FAULTS_MAX - 1, REFUSED).gave_up
    care = deaths(KEEP_FAULTS_MAX, REFUSED)
    assert care.gave_up
    assert care.why == f"ended (exit code 2): {REFUSED.words}"


def test_one_that_is_killed_told_to_end_or_finds_no_room_is_never_given_up() -> None:
    for death in (
        KILLED,
        ProcessDeath(0.0, -signal.SIGTERM),
        ProcessDeath(0.0, 0, in_order=True),
        ProcessDeath(0.0, Full.exit_code, in_order=True),
        ProcessDeath(0.0),  # not our child, and its record is left: somebody killed it
    ):
        care = deaths(10 * KEEP_FAULTS_MAX, death)
        assert not care.gave_up, death
        assert care.pause_s == KEEP_PAUSE_S_MAX


def test_a_crash_of_its_own_is_its_own_doing() -> None:
    assert deaths(KEEP_FAULTS_MAX, ProcessDeath(0.0, -signal.SIGSEGV)).gave_up
    assert deaths(KEEP_FAULTS_MAX, ProcessDeath(0.0, in_order=True)).gave_up


def test_one_that_has_lived_for_a_while_begins_anew_and_is_not_given_up() -> None:
    tired = deaths(KEEP_FAULTS_MAX - 1, REFUSED)
    care = after(tired, ProcessDeath(KEEP_STEADY_S, 1, words="something else"))
    assert (care.deaths, care.faults, care.pause_s, care.gave_up) == (1, 1, 0.0, False)


def test_a_death_is_told_by_its_signal_its_code_or_what_is_known() -> None:
    assert KILLED.sentence() == "was killed (SIGKILL)"
    assert ProcessDeath(0.0).sentence() == "was killed"
    assert ProcessDeath(0.0, 0).sentence() == "was told to end"
    assert (
        ProcessDeath(0.0, 1, words="no such file").sentence() == "ended (exit code 1): no such file"
    )
