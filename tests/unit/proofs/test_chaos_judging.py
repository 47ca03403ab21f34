"""The checks of the chaos run: each has nothing against a good history, and sees a broken one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.proofs.chaos import judging
from tests.proofs.chaos.histories import (
    AppliedSeen,
    Call,
    Lost,
    Plane,
    PlanSeen,
    Probe,
    Strike,
    Write,
    writes_of,
)
from tests.proofs.control.checks import Violation

# Replica 1 answers all the time; replica 2 is not well from 14 s on.
CALLS = [
    Call(10.0, 10.1, version=1, replica="1"),
    Call(10.5, 10.6, version=1, replica="2"),
    Call(12.0, 12.1, version=1, replica="1"),
    Call(20.0, 20.1, version=2, replica="1"),
]
PROBES = [
    Probe(0.5 * at, 0.5 * at + 0.1, worker, well=worker == 1 or at < 28)
    for at in range(16, 50)
    for worker in (1, 2)
]
FAILED = Call(15.0, 16.0, wrong="status 503: b'no healthy upstream'")


def without(worker: int, *, after_s: float, before_s: float) -> list[Probe]:
    return [
        probe
        for probe in PROBES
        if probe.worker != worker or not after_s < probe.began_s < before_s
    ]


def test_a_history_in_which_all_is_answered_is_right() -> None:
    assert judging.every_request_is_answered(CALLS, PROBES) == []


def test_a_request_that_fails_while_a_replica_is_well_is_seen() -> None:
    with pytest.raises(Violation, match="replica 1 was well"):
        judging.every_request_is_answered([*CALLS, FAILED], PROBES)


@pytest.mark.parametrize(
    "probes",
    [
        [replace(one, well=False) if one.began_s == 15.5 else one for one in PROBES],
        without(1, after_s=13.0, before_s=15.5),
        without(1, after_s=15.0, before_s=99.0),
        [one for one in PROBES if one.worker == 2],
    ],
    ids=["ill meanwhile", "not looked at before", "not looked at afterwards", "never looked at"],
)
def test_a_request_that_fails_while_no_replica_is_known_to_be_well_is_excused(
    probes: list[Probe],
) -> None:
    assert judging.every_request_is_answered([*CALLS, FAILED], probes) == [FAILED]


def test_a_replica_that_never_answered_is_not_known_to_the_gateway() -> None:
    calls = [replace(call, replica="2") for call in CALLS]
    assert judging.every_request_is_answered([*calls, FAILED], PROBES) == [FAILED]


def test_a_replica_that_answered_long_ago_may_be_forgotten() -> None:
    early = [Call(1.0, 1.1, version=1, replica="1")]
    late = replace(FAILED, sent_s=40.0, ended_s=41.0)
    probes = [Probe(0.5 * at, 0.5 * at + 0.1, 1, well=True) for at in range(100)]
    assert judging.every_request_is_answered([*early, late], probes) == [late]


def test_wrong_bytes_are_never_excused() -> None:
    wrong = replace(FAILED, wrong="bytes: version 1 answered [[2.0]]")
    with pytest.raises(Violation, match="answered wrong"):
        judging.every_request_is_answered([*CALLS, wrong], [])


# --- two gateways ---------------------------------------------------------------------------------

# Both are asked; replica 1 is well for both all the time.
G1, G2 = (
    [replace(call, gateway=name, number=at) for at, call in enumerate(CALLS)]
    for name in ("g1", "g2")
)
BOTH = [replace(probe, gateway=name) for name in ("g1", "g2") for probe in PROBES]
REFUSED = Call(15.0, 15.1, "connection: ConnectionRefusedError", gateway="g1", number=77)
STRUCK = Strike("g1", 14.5, 14.6)
BACK = Call(18.0, 18.1, version=1, replica="1", gateway="g1")


def judged(*more: Call, strikes: Sequence[Strike] = (), lost: Sequence[Lost] = ()) -> list[Call]:
    calls = [*G1, *G2, *more]
    return judging.every_request_is_answered(calls, BOTH, strikes, lost, PLANS)


def test_a_gateway_that_was_struck_may_refuse_until_it_has_answered_again() -> None:
    assert judged(REFUSED, BACK, strikes=[STRUCK]) == [REFUSED]
    late = replace(REFUSED, sent_s=BACK.ended_s + 6.0, ended_s=BACK.ended_s + 6.1)
    with pytest.raises(Violation, match="nobody had struck"):
        judged(REFUSED, BACK, late, strikes=[STRUCK])


def test_a_connection_that_is_older_than_a_strike_may_break_later() -> None:
    late = replace(REFUSED, sent_s=40.0, ended_s=40.1, wrong="connection: RemoteDisconnected")
    old = replace(late, opened_s=14.0)
    assert judged(BACK, old, strikes=[STRUCK]) == [old]
    with pytest.raises(Violation, match="nobody had struck"):
        judged(BACK, replace(late, opened_s=30.0), strikes=[STRUCK])


def test_a_gateway_that_nobody_struck_takes_every_connection() -> None:
    for strikes in ([], [replace(STRUCK, gateway="g2")], [replace(STRUCK, from_s=15.2)]):
        with pytest.raises(Violation, match=r"to g1 .* nobody had struck"):
            judged(REFUSED, BACK, strikes=strikes)
    with pytest.raises(Violation, match="nobody had struck"):
        judging.every_request_is_answered([REFUSED], [])  # not even without any replica


def test_a_strike_on_one_gateway_excuses_nothing_at_the_other() -> None:
    elsewhere = replace(FAILED, gateway="g2")
    with pytest.raises(Violation, match=r"to g2 .* replica 1 was well"):
        judged(elsewhere, strikes=[STRUCK])


def test_a_pause_that_is_not_over_excuses_what_was_sent_meanwhile() -> None:
    hung = Call(15.0, 45.0, "connection: TimeoutError timed out", gateway="g1")
    assert judged(hung, strikes=[Strike("g1", 14.0)]) == [hung]


def test_replicas_are_judged_as_the_gateway_that_failed_sees_them() -> None:
    probes = [replace(probe, well=False) if probe.gateway == "g1" else probe for probe in BOTH]
    failed = replace(FAILED, gateway="g1")
    calls = [*G1, *G2, failed]
    assert judging.every_request_is_answered(calls, probes) == [failed]
    with pytest.raises(Violation, match="replica 1 was well"):
        judging.every_request_is_answered([*calls, replace(FAILED, gateway="g2")], probes)


def test_a_gateway_that_the_plane_had_lost_may_ask_for_a_version_that_is_gone() -> None:
    failed = replace(FAILED, gateway="g1")  # plan 2 was seen at 13 s
    assert judged(failed, lost=[Lost("g1", 12.0, 14.0)]) == [failed]
    for lost in (Lost("g2", 12.0, 14.0), Lost("g1", 2.0, 3.0), Lost("g1", 19.0, 20.0)):
        with pytest.raises(Violation, match="replica 1 was well"):
            judged(failed, lost=[lost])
    refused = replace(REFUSED, gateway="g1")
    with pytest.raises(Violation, match="nobody had struck"):
        judged(refused, lost=[Lost("g1", 12.0, 14.0)])


def test_a_request_has_failed_when_neither_gateway_has_answered_it() -> None:
    other = replace(REFUSED, gateway="g2", wrong="", version=1, replica="1")
    assert judging.unanswered([REFUSED, other]) == []
    assert judging.unanswered([other, REFUSED]) == []
    again = replace(REFUSED, gateway="g2")
    assert [call.number for call in judging.unanswered([REFUSED, again])] == [77]


PLANS = [PlanSeen(1.0, 1, (1,)), PlanSeen(13.0, 2, (1, 2)), PlanSeen(17.0, 3, (2,))]
APPLIED = [AppliedSeen(1.5, 1), AppliedSeen(13.5, 2), AppliedSeen(17.5, 3)]


def test_answers_of_the_plan_that_was_taken_are_right() -> None:
    judging.answers_are_of_a_version_that_is_served(CALLS, PLANS, APPLIED)


def test_an_old_version_is_right_as_long_as_the_gateway_has_not_taken_the_new_plan() -> None:
    calls = [Call(19.0, 19.1, version=1, replica="1")]
    judging.answers_are_of_a_version_that_is_served(calls, PLANS, APPLIED[:2])
    with pytest.raises(Violation, match="plan 3 was taken"):
        judging.answers_are_of_a_version_that_is_served(calls, PLANS, APPLIED)


def test_each_gateway_follows_its_own_plan() -> None:
    """The other one may be behind."""
    ahead = [replace(one, gateway="g1") for one in APPLIED]
    old = Call(19.0, 19.1, version=1, replica="1", gateway="g2")
    judging.answers_are_of_a_version_that_is_served([old], PLANS, ahead)
    with pytest.raises(Violation, match="plan 3 was taken"):
        judging.answers_are_of_a_version_that_is_served([replace(old, gateway="g1")], PLANS, ahead)


def test_a_version_that_answers_before_it_was_decided_is_seen() -> None:
    calls = [Call(5.0, 5.1, version=2, replica="1")]
    with pytest.raises(Violation, match="version 2 answered"):
        judging.answers_are_of_a_version_that_is_served(calls, PLANS, APPLIED)


def test_a_version_that_nobody_ever_decided_is_seen() -> None:
    calls = [Call(19.0, 19.1, version=9, replica="1")]
    with pytest.raises(Violation, match="version 9 answered"):
        judging.answers_are_of_a_version_that_is_served(calls, PLANS, [])


WRITES = [
    Write("w-1", None, 0),
    Write("w-2", 1, 1),
    Write("w-3", None),  # not acknowledged, and there
    Write("w-4", 1, 2),
    Write("w-5", None, 2),
    Write("w-6", None),  # not acknowledged, and not there
    Write("w-7", 1),  # not acknowledged, and there
]
THERE = Plane({0: "w-1", 1: "w-3", 2: "w-5"}, {1: (3, "w-7")})


def test_acknowledged_writes_that_are_there_are_right() -> None:
    assert judging.every_acknowledged_write_is_there(WRITES, THERE) == 4


def test_a_write_without_an_acknowledgement_may_have_happened_or_not() -> None:
    there = replace(THERE, registers={1: (2, "w-4")})
    assert judging.every_acknowledged_write_is_there(WRITES, there) == 4


@pytest.mark.parametrize(
    "there",
    [
        replace(THERE, sequence={0: "w-1", 1: "w-3"}),
        replace(THERE, sequence={0: "w-1", 1: "w-5", 2: "w-3"}),
        replace(THERE, sequence={**THERE.sequence, 3: "w-3"}),
        replace(THERE, sequence={**THERE.sequence, 3: "w-9"}),
        replace(THERE, registers={1: (1, "w-2")}),
        replace(THERE, registers={1: (2, "w-2")}),
        replace(THERE, registers={1: (3, "w-2")}),
    ],
    ids=[
        "an append is lost",
        "two appends have changed places",
        "an append is there twice",
        "there is one that nobody wrote",
        "a register went back",
        "a register has another value",
        "a register has an old value again",
    ],
)
def test_a_plane_with_something_wrong_is_seen(there: Plane) -> None:
    with pytest.raises(Violation):
        judging.every_acknowledged_write_is_there(WRITES, there)


def test_a_register_whose_versions_go_back_is_seen() -> None:
    writes = [Write("w-1", 0, 5), Write("w-2", 0, 5)]
    with pytest.raises(Violation, match="register 0 took"):
        judging.every_acknowledged_write_is_there(writes, Plane({}, {0: (5, "w-2")}))


def test_the_lines_of_a_writer_that_was_killed_are_put_together() -> None:
    lines: list[dict[str, Any]] = [
        {"tried": "w-1", "register": None},
        {"acknowledged": "w-1", "register": None, "place": 0},
        {"tried": "w-2", "register": 1},
    ]
    assert writes_of(lines) == [Write("w-1", None, 0), Write("w-2", 1)]


def test_whoever_is_left_or_did_not_end_is_seen() -> None:
    judging.nothing_is_left([], [])
    with pytest.raises(Violation, match="still there"):
        judging.nothing_is_left(["process 7 (envoy)"], [])
    with pytest.raises(Violation, match="did not end"):
        judging.nothing_is_left([], ["agent-a"])
