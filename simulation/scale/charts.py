"""The pictures of `docs/scale.md`, from costs and a seed. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from holdfast.wire.limits import REMEET_S, TICK_GAP_S_MAX
from simulation.scale import queues, serving, training
from simulation.scale.costs import Costs
from simulation.scale.pictures import Chart, Line
from simulation.scale.training import LINE_BYTES_PER_S, Cluster

AGENTS = (25, 50, 100, 150, 200, 300, 500, 1_000, 2_000, 4_000)
WORKERS = (10, 30, 100, 300, 1_000, 3_000, 10_000, 30_000)
MEMBERS = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1_024, 4_096, 10_000)
BUSY = (0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
REPORTS_S = 6.0
REQUESTS = 30_000
# A report of ten workers has 1,181 bytes; HTTP/2 begins with a window of 65,535 (RFC 9113, 6.9.2).
WINDOW = 65_535 // 1_200
MODEL_S = 0.010


def charts(costs: Costs, seed: int) -> dict[str, Chart]:
    """Each by the name of its file."""
    made: dict[str, Callable[[], Chart]] = {
        "leader": lambda: leader(costs),
        "reports": lambda: reports(costs, seed),
        "view-change": lambda: view_change(costs),
        "exchange": lambda: exchange(costs),
        "serving": lambda: requests(costs, seed),
        "checks": lambda: checks(costs),
    }
    return {name: make() for name, make in made.items()}


def leader(costs: Costs) -> Chart:
    def line(name: str, *, paced: bool) -> Line:
        shares = [(n, training.leader_share(Cluster(n, paced=paced), costs)) for n in WORKERS]
        return Line(name, shares)

    return Chart(
        "What the leader has to do",
        "workers, ten on a machine",
        "cores",
        (
            line("each agent reports ten times a second", paced=False),
            line("as often as the leader asks for", paced=True),
        ),
        (1.0, "all that one leader has"),
    )


def reporting(agents: int, costs: Costs, *, paced: bool) -> queues.Reporting:
    """The leader's queue, with machines of ten workers."""
    cluster = Cluster(10 * agents, paced=paced)
    look_s = training.tick_s(cluster, costs)
    return queues.Reporting(
        agents,
        agents / training.reports_per_s(cluster),
        training.report_s(cluster, costs),
        look_s,
        min(look_s, TICK_GAP_S_MAX),
        WINDOW,
    )


def reports(costs: Costs, seed: int) -> Chart:
    def line(name: str, *, paced: bool) -> Line:
        ages = (
            queues.report_ages(reporting(n, costs, paced=paced), REPORTS_S, seed) for n in AGENTS
        )
        return Line(name, [(n, age.p99_s) for n, age in zip(AGENTS, ages, strict=True)])

    return Chart(
        f"How old a report is when it is taken, after {REPORTS_S:g} s (p99, simulated)",
        "agents, ten workers each",
        "seconds",
        (
            line("each agent reports ten times a second", paced=False),
            line("as often as the leader asks for", paced=True),
        ),
    )


def view_change(costs: Costs) -> Chart:
    def line(name: str, time_s: Callable[[int], float]) -> Line:
        return Line(name, [(n, time_s(n)) for n in MEMBERS])

    return Chart(
        "After a death: until all members of one job have met again",
        "members",
        "seconds of processors",
        (
            line(
                "all, when each order was made by itself",
                lambda n: _change_s(n, costs, before=True),
            ),
            line("all, now", lambda n: _change_s(n, costs, before=False)),
            line("of it: telling the view", lambda n: training.tell_s(Cluster(n), costs)),
            line("of it: the meeting", lambda n: n * costs.meeting_s.value),
        ),
        (REMEET_S, "members wait so long for a view"),
    )


def _change_s(members: int, costs: Costs, *, before: bool) -> float:
    return training.view_change_s(Cluster(members), costs, before=before)


def exchange(costs: Costs) -> Chart:
    def line(name: str, *, before: bool) -> Line:
        return Line(name, [(n, training.exchange_s(n, costs, before=before)) for n in MEMBERS])

    return Chart(
        "The sum of a gigabyte of gradients, for one member",
        "members, as many lanes",
        "seconds",
        (
            line("processor, buckets of 4 MB", before=True),
            line("processor, buckets that grow with the lanes", before=False),
            Line("line of 10 Gb/s", [(n, training.line_s()) for n in MEMBERS]),
            Line(
                "line of 100 Gb/s", [(n, training.line_s(10 * LINE_BYTES_PER_S)) for n in MEMBERS]
            ),
        ),
    )


def requests(costs: Costs, seed: int) -> Chart:
    rate = serving.PEAK * serving.BILLION_A_DAY
    each_s = MODEL_S + costs.replica_request_s.value

    def line(name: str, gateways: int) -> Line:
        points = []
        for busy in BUSY:
            count = round(rate * each_s / busy)
            world = queues.Serving(rate, gateways, count, each_s)
            points.append((100 * busy, 1e3 * queues.request_waits(world, REQUESTS, seed).p99_s))
        return Line(name, points)

    return Chart(
        "A billion a day at its peak, a model of 10 ms (p99, simulated)",
        "per cent of the replicas' cores in use",
        "milliseconds at the replica",
        (line("1 gateway", 1), line("2 gateways", 2), line("16 gateways", 16)),
    )


def checks(costs: Costs) -> Chart:
    rates = [10**power * digit for power in range(2, 6) for digit in (1, 2, 5)]

    def line(name: str, model_s: float) -> Line:
        traffic = serving.RequestLoad(1.0, model_s)
        return Line(
            name,
            [
                (rate, serving.checks_of_gateway(replace(traffic, rate=float(rate)), costs))
                for rate in rates
            ],
        )

    return Chart(
        "What health checks cost each gateway",
        "requests a second to one service",
        "cores",
        (line("a model of 10 ms", 0.010), line("a model that costs nothing", 0.0)),
        (0.4, "a tenth of 4 cores"),
    )
