"""How busy each part of training is at a number of workers. Pure.

Machines have ten workers each, unless said otherwise. Two shapes: all workers in one job, and jobs
of ten. What depends on the size of a job breaks only in the first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from holdfast.control.rpc.connections import steps_pause_s
from holdfast.train.sums.exchange_plan import bucket_bytes
from holdfast.wire.limits import (
    BUCKET_BYTES,
    CALLERS_MAX,
    CONNECTIONS_MAX,
    KEEPER_FRACTION,
    MANIFEST_BYTES_MAX,
    PROBE_S,
    REMEET_S,
    REPORT_STEPS_S,
    SESSION_TIMEOUT_S,
    STREAMS_MAX,
    TICK_GAP_S_MAX,
    VALUE_BYTES_MAX,
)
from simulation.scale import sizes
from simulation.scale.costs import Costs
from simulation.scale.loads import PartLoad, ScalingPart

# A line of 10 Gb/s, in both directions.
LINE_BYTES_PER_S = 1.25e9
GIGABYTE = 1e9


@dataclass(frozen=True, slots=True)
class Cluster:
    """So many workers; `workers_a_job` None: all in one job. `paced`: agents report as they are
    asked to; else ten times a second each, as before."""

    workers: int
    workers_a_job: int | None = None
    workers_a_node: int = 10
    paced: bool = True

    @property
    def agents(self) -> int:
        return -(-self.workers // self.workers_a_node)

    @property
    def members(self) -> int:
        """Of the largest view."""
        return min(self.workers, self.workers_a_job or self.workers)


def reports_per_s(cluster: Cluster) -> float:
    pause_s = steps_pause_s(cluster.agents) if cluster.paced else REPORT_STEPS_S
    return cluster.agents / pause_s


def report_s(cluster: Cluster, costs: Costs) -> float:
    """What one report costs the leader."""
    return costs.report_s.value + cluster.workers_a_node * costs.report_worker_s.value


def tick_s(cluster: Cluster, costs: Costs) -> float:
    """One look at everything, when nothing is to be decided."""
    return cluster.workers * (costs.plan_s.value + costs.reconcile_s.value)


def leader_share(cluster: Cluster, costs: Costs) -> float:
    """Of the leader's one core (Python has one lock): reports, and ticks with their pauses."""
    rate = reports_per_s(cluster)
    look_s = tick_s(cluster, costs)
    ticking = look_s / (look_s + min(look_s, TICK_GAP_S_MAX))
    return rate * report_s(cluster, costs) + min(ticking, rate * look_s)


def tell_s(cluster: Cluster, costs: Costs, *, before: bool = False) -> float:
    """To give all members of the largest view their orders. Those on one machine share the view;
    `before`: each order was made by itself."""
    members = cluster.members
    if before:
        return members * (costs.tell_order_s.value + members * costs.tell_member_before_s.value)
    machines = -(-members // cluster.workers_a_node)
    views_s = machines * members * costs.tell_member_s.value
    return members * costs.tell_order_s.value + views_s


def view_change_s(cluster: Cluster, costs: Costs, *, before: bool = False) -> float:
    """From the report of a death until all members have met in the next view: processor times of
    those who work one after the other. Network and disk come on top."""
    look_s, members = tick_s(cluster, costs), cluster.members
    telling_s = tell_s(cluster, costs, before=before)
    return look_s + telling_s + members * costs.meeting_s.value


def exchange_s(members: int, costs: Costs, *, before: bool = False) -> float:
    """Processor time of a member for a gigabyte of gradients: a message to and from each peer for
    each bucket, and the bytes. `before`: with buckets of one size, however many members."""
    bucket = BUCKET_BYTES if before else bucket_bytes(members)
    buckets = GIGABYTE / bucket
    return buckets * (members - 1) * costs.message_s.value + 2 * GIGABYTE * costs.byte_s.value


def line_s(bytes_per_s: float = LINE_BYTES_PER_S) -> float:
    """The same gigabyte on the line: its pieces go out and come in, and so do the sums; both
    directions at a time."""
    return 2 * GIGABYTE / bytes_per_s


At = Callable[[int], Cluster]


def parts(
    costs: Costs, workers_a_job: int | None = None, workers_a_node: int = 10
) -> list[ScalingPart]:
    """Every part, for clusters of that shape."""

    def at(size: int) -> Cluster:
        return Cluster(size, workers_a_job, workers_a_node)

    return [*_leader(at, costs), *_plane(at, costs), *_workers(at, costs)]


def _leader(at: At, costs: Costs) -> list[ScalingPart]:
    def telling(size: int) -> PartLoad:
        cluster = at(size)
        return PartLoad(tick_s(cluster, costs) + tell_s(cluster, costs), REMEET_S)

    return [
        ScalingPart(
            "leader: reports and decisions",
            "one core",
            lambda size: PartLoad(leader_share(at(size), costs), 1.0),
        ),
        ScalingPart("leader: telling a view", f"members wait {REMEET_S:g} s for it", telling),
        ScalingPart(
            "leader: streams of agents",
            f"STREAMS_MAX = {STREAMS_MAX:,}",
            lambda size: PartLoad(at(size).agents, STREAMS_MAX),
        ),
        ScalingPart(
            "leader: knowing all agents when it begins",
            f"a session's {SESSION_TIMEOUT_S:g} s",
            lambda size: PartLoad(at(size).agents * costs.members_first_s.value, SESSION_TIMEOUT_S),
        ),
    ]


def _plane(at: At, costs: Costs) -> list[ScalingPart]:
    def keeping(size: int) -> PartLoad:
        """Each agent's client asks for a sign of life, and kazoo pings in between."""
        rate = at(size).agents * (1 / KEEPER_FRACTION + 3) / SESSION_TIMEOUT_S
        return PartLoad(rate * costs.request_s.value, 1.0)

    return [
        ScalingPart("plane: signs of life", "one core", keeping),
        ScalingPart(
            "plane: connections",
            f"CONNECTIONS_MAX = {CONNECTIONS_MAX:,}",
            lambda size: PartLoad(at(size).agents, CONNECTIONS_MAX),
        ),
        ScalingPart(
            "plane: the record of a view",
            f"VALUE_BYTES_MAX = {VALUE_BYTES_MAX:,}",
            lambda size: PartLoad(sizes.view_bytes_about(at(size).members), VALUE_BYTES_MAX),
        ),
        ScalingPart(
            "store: a manifest",
            f"MANIFEST_BYTES_MAX = {MANIFEST_BYTES_MAX:,}",
            lambda size: PartLoad(
                at(size).members * costs.manifest_bytes.value, MANIFEST_BYTES_MAX
            ),
        ),
    ]


def _workers(at: At, costs: Costs) -> list[ScalingPart]:
    def exchanging(size: int) -> PartLoad:
        bytes_s = 2 * GIGABYTE * costs.byte_s.value
        return PartLoad(exchange_s(at(size).members, costs) - bytes_s, line_s())

    return [
        ScalingPart(
            "worker: callers at its listener",
            f"CALLERS_MAX = {CALLERS_MAX:,}",
            lambda size: PartLoad(at(size).members - 1, CALLERS_MAX),
        ),
        ScalingPart(
            "worker: a meeting",
            f"a call is lost after {PROBE_S:g} s without an answer",
            lambda size: PartLoad(at(size).members * costs.meeting_s.value, PROBE_S),
        ),
        ScalingPart(
            "worker: messages of an exchange",
            "as long as their bytes take at 10 Gb/s",
            exchanging,
        ),
    ]
