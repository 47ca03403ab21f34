"""Shares of the requests: what is wanted, bounded by what is there."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.serve.gateway.state import KnownService, VariantShare, shares
from holdfast.serve.records import WEIGHT_TOTAL
from tests.unit.serve.gateway.making import REPLICAS, SERVICES, known, plan, seen


def test_a_service_without_a_plan_has_no_shares() -> None:
    assert shares(known(None, seen(1))) == ()


def test_variants_that_are_ready_everywhere_get_what_the_plan_says() -> None:
    both = known(plan((1, 9_500), (2, 500)), seen(1, (1, 2)), seen(2, (1, 2)))
    assert shares(both) == (
        VariantShare("stable", 1, 9_500),
        VariantShare("canary", 2, 500, instead=1),
    )


def test_a_variant_that_nobody_is_ready_for_gets_nothing() -> None:
    loading = known(plan((1, 5_000), (2, 5_000)), seen(1, (1,), loading=(2,)))
    assert shares(loading) == (VariantShare("stable", 1, WEIGHT_TOTAL),)


def test_a_variant_gets_no_more_than_its_part_of_the_replicas() -> None:
    one_of_four = [seen(1, (1, 2)), *(seen(number, (1,)) for number in (2, 3, 4))]
    found = shares(known(plan((1, 1_000), (2, 9_000)), *one_of_four))
    assert found == (VariantShare("stable", 1, 7_500), VariantShare("canary", 2, 2_500, instead=1))


def test_a_draining_replica_is_no_capacity() -> None:
    leaving = known(plan((1, 5_000), (2, 5_000)), seen(1, (1, 2), draining=True), seen(2, (1,)))
    assert shares(leaving) == (VariantShare("stable", 1, WEIGHT_TOTAL),)


def test_when_nobody_has_the_stable_version_the_others_answer() -> None:
    without = known(plan((1, 9_000), (2, 1_000)), seen(1, (2,)))
    assert shares(without) == (VariantShare("canary", 2, WEIGHT_TOTAL, instead=1),)


def test_when_nobody_has_anything_the_stable_version_is_asked_for() -> None:
    assert shares(known(plan((1, 9_000), (2, 1_000)))) == (VariantShare("stable", 1, WEIGHT_TOTAL),)


@given(SERVICES)
def test_shares_sum_up_and_stay_within_the_capacity_behind_them(one: KnownService) -> None:
    found = shares(one)
    assert sum(share.weight for share in found) == WEIGHT_TOTAL
    assert all(share.weight > 0 for share in found)
    assert one.plan is not None
    stable = one.plan.variants[0].version
    versions = {variant.version for variant in one.plan.variants}
    able = sum(
        any(each.ready(version) for version in versions) and not each.draining
        for each in one.replicas
    )
    for share in found:
        ready = one.capacity(share.version)
        # The stable variant takes what is left over; so does the last one if nobody has the stable.
        if share.version != stable and one.capacity(stable):
            assert share.weight * able <= WEIGHT_TOTAL * ready
        if able:
            assert ready or share.version == stable
    if one.capacity(stable):
        first = found[0]
        assert first.version == stable or not first.weight or one.plan.variants[0].weight == 0
    if able:
        assert any(one.capacity(share.version) for share in found)


@given(SERVICES)
def test_the_stable_variant_is_the_first(one: KnownService) -> None:
    assert one.plan is not None
    order = [variant.version for variant in one.plan.variants]
    found = [share.version for share in shares(one)]
    assert found == [version for version in order if version in found]


@given(REPLICAS, st.integers(0, WEIGHT_TOTAL), st.integers(0, WEIGHT_TOTAL))
def test_a_canary_that_grows_keeps_the_users_it_had(
    there: list[object], one: int, other: int
) -> None:
    """A user's place in 0 ... total is fixed, and the variants lie there one after the other."""
    small, large = sorted((one, other))

    def first_place(weight: int) -> int:
        """Where the canary begins."""
        variants = plan((1, WEIGHT_TOTAL - weight), (2, weight))
        found = shares(known(variants, *there))  # type: ignore[arg-type]
        return WEIGHT_TOTAL - sum(share.weight for share in found if share.variant == "canary")

    assert first_place(large) <= first_place(small)
