"""The model of large clusters finds what breaks first, with the product's own code and limits."""

from __future__ import annotations

import dataclasses
import importlib.util
import math
import re
from dataclasses import replace

import pytest

from holdfast.wire.limits import (
    CALLERS_MAX,
    SERVICE_REPLICAS_MAX,
    STREAMS_MAX,
    VALUE_BYTES_MAX,
)
from simulation.scale import queues, serving, sizes, training
from simulation.scale.costs import MEASURED, Cost, Costs
from simulation.scale.loads import PartLoad, ScalingPart, breaks, breaks_at
from simulation.scale.queues import Reporting, Serving
from simulation.scale.serving import RequestLoad
from simulation.scale.training import Cluster


def cheaper(costs: Costs, **times: float) -> Costs:
    """The same costs, some of them so many times as high."""
    changed = {}
    for name, factor in times.items():
        cost: Cost = getattr(costs, name)
        changed[name] = replace(cost, value=cost.value * factor)
    return replace(costs, **changed)


def test_every_cost_is_a_figure_with_a_unit_and_a_source() -> None:
    for name, cost in MEASURED.table():
        assert cost.value > 0, name
        assert cost.unit, name
        assert re.search(r"python -m bench\.|\(20\d\d\)", cost.source), f"{name}: {cost.source}"


def test_every_bench_that_is_named_as_a_source_exists() -> None:
    for name, cost in MEASURED.table():
        for module in re.findall(r"python -m (bench\.[a-z_.]+)", cost.source):
            assert importlib.util.find_spec(module) is not None, (name, module)


# --- finding what breaks -------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 2, 7, 99, 100, 12_345, 10**6])
def test_a_part_breaks_at_the_first_size_beyond_its_limit(limit: int) -> None:
    part = ScalingPart("p", "", lambda size: PartLoad(size, limit))
    assert breaks_at(part, 10**7) == limit + 1


def test_a_part_that_does_not_break_is_last_and_says_so() -> None:
    early = ScalingPart("10", "", lambda size: PartLoad(size, 10))
    late = ScalingPart("100", "", lambda size: PartLoad(size, 100))
    never = ScalingPart("never", "", lambda _size: PartLoad(0.0, 1.0))
    found = breaks([never, late, early], 1_000)
    assert [(one.part.name, one.size) for one in found] == [
        ("10", 11),
        ("100", 101),
        ("never", None),
    ]


# --- training ------------------------------------------------------------------------------------


def where(parts: list[ScalingPart]) -> dict[str, int | None]:
    return {one.part.name: one.size for one in breaks(parts, 10**7)}


def test_limits_of_the_product_are_found_where_they_are() -> None:
    found = where(training.parts(MEASURED))
    assert found["worker: callers at its listener"] == CALLERS_MAX + 2
    assert found["leader: streams of agents"] == 10 * STREAMS_MAX + 1
    record = found["plane: the record of a view"]
    assert record is not None
    fits, fails = (sizes.view_record_bytes(record * part // 100) for part in (99, 101))
    assert fits <= VALUE_BYTES_MAX < fails, "the line is drawn through real records"


def test_what_depends_on_the_size_of_a_job_does_not_break_with_many_small_jobs() -> None:
    large, small = where(training.parts(MEASURED)), where(training.parts(MEASURED, 10))
    for name in (
        "plane: the record of a view",
        "worker: a meeting",
        "worker: callers at its listener",
    ):
        assert large[name] is not None
        assert small[name] is None
    assert large["leader: reports and decisions"] == small["leader: reports and decisions"]


def test_machines_with_fewer_workers_are_more_agents_and_break_the_leader_sooner() -> None:
    name = "leader: reports and decisions"
    tens = where(training.parts(MEASURED, 10, 10))[name]
    ones = where(training.parts(MEASURED, 10, 1))[name]
    assert tens is not None
    assert ones is not None
    assert ones < tens


def test_a_cheaper_report_lets_a_leader_have_more_workers() -> None:
    name = "leader: reports and decisions"
    now = where(training.parts(MEASURED))[name]
    then = where(training.parts(cheaper(MEASURED, report_s=0.1, report_worker_s=0.1)))[name]
    assert now is not None
    assert then is not None
    assert then > now


def test_asked_for_fewer_reports_a_leader_has_room_where_it_had_none() -> None:
    all_at_once = training.leader_share(Cluster(10_000, paced=False), MEASURED)
    asked = training.leader_share(Cluster(10_000), MEASURED)
    assert all_at_once > 1 > asked


def test_telling_a_view_costs_less_than_when_each_order_was_made_by_itself() -> None:
    for members in (100, 1_000, 10_000):
        cluster = Cluster(members)
        assert training.tell_s(cluster, MEASURED) < training.tell_s(cluster, MEASURED, before=True)


def test_larger_buckets_help_jobs_of_many_members_and_change_nothing_for_few() -> None:
    def times(members: int) -> tuple[float, float]:
        now = training.exchange_s(members, MEASURED)
        return now, training.exchange_s(members, MEASURED, before=True)

    assert math.isclose(*times(8))
    now, before = times(1_000)
    assert now < before / 5


# --- serving -------------------------------------------------------------------------------------


def test_a_billion_a_day_at_its_peak_fits_into_one_service_if_the_model_is_small() -> None:
    peak = serving.PEAK * serving.BILLION_A_DAY
    assert round(serving.BILLION_A_DAY) == 11_574
    assert serving.replicas(RequestLoad(peak), MEASURED) < SERVICE_REPLICAS_MAX
    assert serving.replicas(RequestLoad(peak, 0.010), MEASURED) > SERVICE_REPLICAS_MAX


def test_health_checks_grow_with_gateways_times_replicas() -> None:
    def checks(rate: float) -> float:
        traffic = RequestLoad(rate, 0.010)
        each = serving.checks_of_gateway(traffic, MEASURED)
        return serving.gateways(traffic, MEASURED) * each

    assert checks(2_000_000.0) / checks(200_000.0) == pytest.approx(100, rel=0.1)


# --- queues --------------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_waits_and_another_one_others() -> None:
    world = Serving(1_000.0, 2, 20, 0.010)
    assert queues.request_waits(world, 2_000, 1) == queues.request_waits(world, 2_000, 1)
    assert queues.request_waits(world, 2_000, 1) != queues.request_waits(world, 2_000, 2)
    agents = Reporting(20, 0.1, 0.0004, 0.01, 0.01, 50)
    assert queues.report_ages(agents, 1.0, 1) == queues.report_ages(agents, 1.0, 1)


def test_a_queue_without_load_takes_as_long_as_the_work_itself() -> None:
    waits = queues.request_waits(Serving(1.0, 1, 50, 0.010), 500, 3)
    assert waits.p50_s == pytest.approx(0.010, rel=0.1)
    ages = queues.report_ages(Reporting(2, 0.1, 0.0004, 0.0, 0.1, 50), 5.0, 3)
    assert ages.p50_s == pytest.approx(0.0004, rel=0.01)


def test_one_server_waits_as_the_formula_for_one_server_says() -> None:
    """Pollaczek and Khinchine: at load r the mean wait is r / (1 - r) * (1 + v) / 2 of a service,
    v being the variance of a service in units of its square; for us a fiftieth or so."""
    load, service_s = 0.7, 0.010
    waits = queues.request_waits(Serving(load / service_s, 1, 1, service_s), 60_000, 4)
    mean_s = service_s * (1 + load / (1 - load) * (1 + 0.4**2 / 12) / 2)
    assert 0.5 * mean_s < waits.p50_s < 1.2 * mean_s, "the median is below the mean, not far"
    assert waits.per_s == pytest.approx(load / service_s, rel=0.05)


def test_more_gateways_that_know_less_of_each_other_make_the_slowest_slower() -> None:
    slow = [queues.request_waits(Serving(2_000.0, n, 25, 0.010), 20_000, 5).p99_s for n in (1, 16)]
    assert slow[0] < slow[1]


def test_a_leader_that_is_asked_too_much_decides_upon_old_reports() -> None:
    def age(agents: int) -> queues.Waits:
        return queues.report_ages(Reporting(agents, 0.1, 0.0005, 0.02, 0.02, 50), 4.0, 6)

    assert age(50).p99_s < 0.1
    late = age(1_000)
    assert late.p50_s > 1.0
    assert late.per_s < 2_000, "no more than its core gives"


def test_what_waits_for_a_leader_is_bounded_by_what_agents_may_have_on_their_way() -> None:
    def oldest(window: int) -> float:
        world = Reporting(500, 0.1, 0.001, 0.02, 0.02, window)
        return queues.report_ages(world, 10.0, 7).p99_s

    assert oldest(1) < 500 * 0.002 * 1.5
    assert oldest(1) < oldest(50)


def test_costs_are_values_that_nobody_changes() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        MEASURED.report_s = Cost(1.0, "s", "")  # type: ignore[misc]
