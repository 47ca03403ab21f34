"""What stays known when facts vanish."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.serve.gateway.state import (
    LOST_LAST_S,
    KnownReplica,
    KnownService,
    PlaneService,
    anything_lost,
    kept,
)
from holdfast.serve.records import Replica
from holdfast.wire.limits import LOST_REPLICA_S
from tests.unit.serve.gateway.making import REPLICAS, known, plan, replica, seen

NOW_S = 1_000.0
STEADY = plan((1, 10_000))


def address(worker: int) -> tuple[str, int]:
    return "10.0.0.1", 9000 + worker


def found(*replicas: Replica) -> dict[str, PlaneService]:
    there = {str(one.worker): one for one in replicas}
    return {"digits": PlaneService(known(STEADY).service, STEADY, there)}


def workers(services: tuple[KnownService, ...]) -> list[int]:
    return [one.replica.worker for known in services for one in known.replicas]


def test_what_is_there_is_known() -> None:
    (one,) = kept((), found(replica(1), replica(2)), NOW_S, None)
    assert (one.plan, one.lost_s) == (STEADY, None)
    assert [each.lost_s for each in one.replicas] == [None, None]


def test_a_replica_that_vanished_stays_while_it_is_healthy_and_for_a_bounded_time() -> None:
    before = (known(STEADY, seen(1), seen(2)),)
    after = kept(before, found(replica(2)), NOW_S, [address(1), address(2)])
    assert workers(after) == [1, 2]
    assert after[0].replicas[0].lost_s == NOW_S
    assert anything_lost(after)
    later_s = NOW_S + LOST_REPLICA_S
    assert workers(kept(after, found(replica(2)), later_s - 1, [address(1)])) == [1, 2]
    assert workers(kept(after, found(replica(2)), later_s, [address(1)])) == [2]


def test_a_replica_that_vanished_and_is_not_healthy_goes_at_once() -> None:
    before = (known(STEADY, seen(1), seen(2)),)
    assert workers(kept(before, found(replica(2)), NOW_S, [address(2)])) == [2]


def test_nobody_goes_when_nobody_could_say_who_is_healthy() -> None:
    before = (known(STEADY, seen(1), seen(2)),)
    assert workers(kept(before, found(replica(2)), NOW_S, None)) == [1, 2]


def test_a_replica_that_drained_and_vanished_is_gone() -> None:
    before = (known(STEADY, seen(1, draining=True), seen(2)),)
    assert workers(kept(before, found(replica(2)), NOW_S, [address(1)])) == [2]


def test_another_process_under_the_same_number_takes_the_place() -> None:
    before = (known(STEADY, seen(1)),)
    new = replica(1, host="10.0.0.9")
    (one,) = kept(before, found(new), NOW_S, [address(1)])
    assert [each.replica for each in one.replicas] == [new]


def test_when_all_vanish_at_once_the_healthy_ones_stay_much_longer() -> None:
    before = (known(STEADY, seen(1), seen(2)),)
    after = kept(before, found(), NOW_S, [address(1)])
    assert workers(after) == [1]
    much_later_s = NOW_S + 10 * LOST_REPLICA_S
    assert workers(kept(after, found(), much_later_s, [address(1)])) == [1]
    assert workers(kept(after, found(), NOW_S + LOST_LAST_S, [address(1)])) == []


def test_the_last_ones_stay_a_while_even_if_no_check_passes() -> None:
    before = (known(STEADY, seen(1), seen(2)),)
    after = kept(before, found(), NOW_S, [])
    assert workers(after) == [1, 2]
    assert workers(kept(after, found(), NOW_S + LOST_REPLICA_S, [])) == []


def test_a_service_that_vanished_is_served_while_its_replicas_are_well() -> None:
    before = (known(STEADY, seen(1)),)
    (after,) = kept(before, {}, NOW_S, [address(1)])
    assert (after.lost_s, after.plan) == (NOW_S, STEADY)
    (back,) = kept((after,), found(replica(1)), NOW_S + 1, [address(1)])
    assert back == known(STEADY, seen(1))
    assert kept((after,), {}, NOW_S + LOST_REPLICA_S, []) == ()


def test_a_service_that_was_ended_goes_with_its_last_replica() -> None:
    before = (known(STEADY, seen(1, draining=True)),)
    assert kept(before, {}, NOW_S, None) == ()


def test_a_plan_that_cannot_be_found_is_the_last_one() -> None:
    before = (known(STEADY, seen(1)),)
    gone = {"digits": PlaneService(known(None).service, None, {"1": replica(1)})}
    (after,) = kept(before, gone, NOW_S, None)
    assert after.plan == STEADY


@given(REPLICAS, st.sets(st.integers(0, 30)), st.sets(st.integers(0, 30)), st.integers(0, 59))
def test_registrations_never_empty_a_service_with_a_healthy_replica(
    before: list[KnownReplica], there: set[int], well: set[int], later_s: int
) -> None:
    """Whoever vanishes: if one that is not draining is healthy, there is an endpoint left."""
    known_before = (known(STEADY, *before),)
    registered = [one.replica for one in before if one.replica.worker in there]
    healthy = [one.address for one in before if one.replica.worker in well]
    after = kept(known_before, found(*registered), 5.0 + later_s, healthy)
    kept_workers = set(workers(after))
    assert kept_workers >= {one.worker for one in registered}
    stays = {
        one.replica.worker
        for one in before
        if one.replica.worker in well - there and not one.draining
    }
    assert stays <= kept_workers
