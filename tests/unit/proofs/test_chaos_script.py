"""The injector of the chaos run: a script says what it means, and a seed draws the same one."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from tests.proofs.chaos import observed, script
from tests.proofs.chaos.cast import ALONE, CLIENT, DIRECTOR, ENSEMBLE, STORE, Cast
from tests.proofs.chaos.drawing import draw
from tests.proofs.chaos.observed import clock, job, leader, service
from tests.proofs.chaos.script import Chaos, Playing, all_, any_, leading

WITH_STORE = replace(ALONE, store=STORE)
WITH_ENSEMBLE = replace(ENSEMBLE, store=STORE)


def at(seconds: float, **facts: float) -> dict[str, float]:
    return {"clock.seconds": seconds, **{name.replace("_", "."): n for name, n in facts.items()}}


def test_a_script_is_read_as_it_was_written() -> None:
    chaos = Chaos()
    chaos.kill(agent=2).when(job.step > 40)
    chaos.partition({"b", "a"}, {"c"}).for_(5)
    chaos.pause(coordinator=leading).for_(8).at(20)
    chaos.slow("a", "1mbit").for_(10)
    chaos.cut("a", "b", one_way=True)
    chaos.restart(coordinator=1).at(3.5)
    chaos.every(10).kill(replica=any_).picking(0.5)
    chaos.kill(worker=all_)
    chaos.rollout("worse").at(7)
    chaos.kill(envoy=1).when(service.answered > 200)
    chaos.pause(store=1)
    chaos.fill("a").for_(5).at(40)
    assert str(chaos).splitlines() == [
        "chaos.kill(agent=2).when(job.step > 40)",
        'chaos.partition({"a", "b"}, {"c"}).for_(5)',
        "chaos.pause(coordinator=leading).for_(8).at(20)",
        'chaos.slow("a", "1mbit").for_(10)',
        'chaos.cut("a", "b", one_way=True)',
        "chaos.restart(coordinator=1).at(3.5)",
        "chaos.every(10).kill(replica=any_).picking(0.5)",
        "chaos.kill(worker=all_)",
        'chaos.rollout("worse").at(7)',
        "chaos.kill(envoy=1).when(service.answered > 200)",
        "chaos.pause(store=1)",
        'chaos.fill("a").for_(5).at(40)',
    ]


@pytest.mark.parametrize("cast", [WITH_STORE, ENSEMBLE], ids=["alone", "ensemble"])
@pytest.mark.parametrize("links", [True, False])
def test_a_drawn_script_can_be_pasted_and_is_then_the_same(cast: Cast, links: bool) -> None:
    drawn = draw(7, 600, cast, links=links, disks=True)
    chaos = Chaos()
    names = {**vars(script), **vars(observed), "chaos": chaos}
    for line in str(drawn).splitlines():
        eval(line, names)
    assert str(chaos) == str(drawn)
    assert [vars(act) for act in chaos] == [vars(act) for act in drawn]


def test_an_act_waits_for_its_condition_and_happens_once() -> None:
    chaos = Chaos()
    act = chaos.kill(agent=2).when(job.step > 40)
    playing = Playing(chaos)
    assert playing.due(at(1.0)) == []  # no step was observed yet
    assert playing.due(at(2.0, job_step=40)) == []
    assert playing.left == 1
    assert playing.due(at(3.0, job_step=41)) == [act]
    assert playing.due(at(4.0, job_step=42)) == []
    assert playing.left == 0


def test_an_act_with_a_time_and_a_condition_needs_both() -> None:
    chaos = Chaos()
    act = chaos.pause(worker=any_).at(10).when(job.step > 5).when(leader.term >= 2)
    playing = Playing(chaos)
    assert playing.due(at(9.0, job_step=6, leader_term=2)) == []
    assert playing.due(at(11.0, job_step=6, leader_term=1)) == []
    assert playing.due(at(12.0, job_step=6, leader_term=2)) == [act]


def test_what_happens_again_and_again_happens_after_each_while() -> None:
    chaos = Chaos()
    act = chaos.every(10).kill(replica=any_)
    playing = Playing(chaos)
    happened = [second for second in range(35) if playing.due(at(float(second))) == [act]]
    assert happened == [10, 20, 30]
    assert playing.left == 0  # nobody waits for its end


def test_conditions_are_joined() -> None:
    both = (job.step > 4) & (service.ready >= 2)
    either = (job.step > 4) | (service.ready <= 0)
    assert both.holds(at(0.0, job_step=5, service_ready=2))
    assert not both.holds(at(0.0, job_step=5))
    assert either.holds(at(0.0, service_ready=0))
    assert str(both) == "(job.step > 4) & (service.ready >= 2)"
    assert job.round.reaches(3).holds(at(0.0, job_round=3))
    assert (clock.seconds < 3).holds(at(2.0))


def test_a_condition_is_not_true_or_false_by_itself() -> None:
    with pytest.raises(TypeError, match="when"):
        bool(job.step > 4)


def test_a_fact_that_nobody_observes_is_an_error_with_the_nearest() -> None:
    with pytest.raises(AttributeError, match="did you mean step"):
        _ = job.stpe


@pytest.mark.parametrize(
    "wrong",
    [
        lambda chaos: chaos.kill(),
        lambda chaos: chaos.kill(agent=1, worker=2),
        lambda chaos: chaos.kill(everybody=any_),
        lambda chaos: chaos.kill(agent=leading),
        lambda chaos: chaos.partition({"a"}),
        lambda chaos: chaos.partition({"a", "b"}, {"b"}),
        lambda chaos: chaos.rollout("strange"),
        lambda chaos: chaos.every(0),
    ],
)
def test_what_makes_no_sense_is_refused_at_once(wrong: object) -> None:
    with pytest.raises(ValueError):
        wrong(Chaos())  # type: ignore[operator]


def test_a_seed_always_draws_the_same_script_and_another_one_another() -> None:
    scripts = {str(draw(seed, 300, WITH_STORE, links=True, disks=True)) for seed in range(20)}
    assert len(scripts) == 20
    assert scripts == {
        str(draw(seed, 300, WITH_STORE, links=True, disks=True)) for seed in range(20)
    }


def test_a_longer_run_begins_as_a_shorter_one() -> None:
    short, long = (draw(3, seconds, WITH_STORE, links=True, disks=True) for seconds in (120, 600))
    assert str(long).startswith(str(short))


def drawn(seed: int, cast: Cast, *, links: bool = True, disks: bool = True) -> Chaos:
    return draw(seed, 600, cast, links=links, disks=disks)


def test_all_verbs_and_kinds_come_and_nobody_is_struck_who_must_not_be() -> None:
    acts = [act for seed in range(30) for act in drawn(seed, WITH_ENSEMBLE)]
    assert {act.verb for act in acts} == {
        *("kill", "pause", "restart", "cut", "slow", "fill", "rollout", "rollback")
    }
    assert {act.kind for act in acts if act.kind} == set(script.KINDS)
    struck = {host for act in acts for side in act.sides for host in side}
    assert struck == {*WITH_ENSEMBLE.struck, CLIENT}
    assert DIRECTOR not in struck
    lost = {host for act in acts for side in act.sides for host in side if (CLIENT,) in act.sides}
    assert lost == {CLIENT, *WITH_ENSEMBLE.gateways}
    slowed = {act.sides[0][0] for act in acts if act.verb == "slow"}
    assert not slowed & set(WITH_ENSEMBLE.gateways)
    assert all(act.at_s is not None and 0 < act.at_s < 600 for act in acts)


def test_without_namespaces_only_the_way_to_the_plane_is_cut() -> None:
    acts = [act for seed in range(30) for act in drawn(seed, WITH_STORE, links=False)]
    assert "slow" not in {act.verb for act in acts}
    assert {act.sides[1] for act in acts if act.verb == "cut"} == {("plane",)}


def test_only_disks_of_which_something_is_promised_are_filled() -> None:
    for cast, filled in ((ALONE, {"plane", "a", "b", "c"}), (ENSEMBLE, {"a", "b", "c"})):
        acts = [act for seed in range(30) for act in drawn(seed, cast)]
        assert {act.sides[0][0] for act in acts if act.verb == "fill"} == filled
    acts = [act for seed in range(30) for act in drawn(seed, ALONE, disks=False)]
    assert "fill" not in {act.verb for act in acts}


def test_a_store_in_a_folder_has_nobody_who_could_be_struck() -> None:
    acts = [act for seed in range(30) for act in drawn(seed, ALONE)]
    assert "store" not in {act.kind for act in acts}
    assert STORE not in {host for act in acts for side in act.sides for host in side}


def test_a_gateway_that_is_killed_with_its_envoy_goes_first() -> None:
    acts = [act for seed in range(30) for act in drawn(seed, ALONE)]
    both = [
        (one, other)
        for one, other in pairwise(acts)
        if (one.kind, other.kind, one.at_s) == ("gateway", "envoy", other.at_s)
    ]
    assert both
    assert all(one.who == other.who for one, other in both)


def test_mostly_one_gateway_is_left_to_the_client() -> None:
    alone = struck = 0
    for seed in range(30):
        last_s: dict[int, float] = {}
        for act in drawn(seed, ALONE):
            if act.kind == "envoy" and act.verb == "kill" and isinstance(act.who, int):
                other_s = last_s.get(3 - act.who, -100.0)
                struck += 1
                alone += (act.at_s or 0.0) > other_s
                last_s[act.who] = (act.at_s or 0.0) + act.lasts_s
    assert struck > 100
    assert alone > 0.9 * struck
