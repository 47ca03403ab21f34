"""What holds of every plan in worlds that nobody thought of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import given, note, settings
from hypothesis import strategies as st

from holdfast.control.decide.capacity import amounts_of, within
from holdfast.control.decide.facts import Intent
from holdfast.control.decide.schedule import JobPlan, SchedulePlan
from holdfast.control.decide.spec import Resources
from tests.unit.control.clusters import Cluster, load, running

NEEDS = (Resources(1.0), Resources(2.0, 1), Resources(0.5, 2), Resources(1.0, 1, 1), Resources(3.0))
KINDS = (
    *("submit", "submit", "submit", "finish", "wait", "scale", "pause", "run", "lose"),
    *("drain", "gone", "shrink"),
)
QUEUES = ("default", "prod", "lab")
Event = Callable[[Cluster], None]


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    cluster = Cluster()
    for number in range(draw(st.integers(1, 5))):
        cluster.node(
            f"n{number}",
            draw(st.integers(1, 8)),
            draw(st.integers(0, 12)),
            draw(st.sampled_from((0, 0, 2))),
        )
    if draw(st.booleans()):
        cluster.queue("prod", draw(st.integers(0, 8)))
    if draw(st.booleans()):
        cluster.queue("lab", draw(st.integers(0, 4)), draw(st.integers(1, 12)))
    return cluster


@st.composite
def events(draw: st.DrawFn, number: int, needs: tuple[Resources, ...]) -> Event:
    kind = draw(st.sampled_from(KINDS))
    pick = draw(st.integers(0, 7))
    if kind == "submit":
        least = draw(st.integers(1, 5))
        job: dict[str, Any] = {
            "workers": (least, draw(st.integers(least, 9))),
            "priority": draw(st.integers(0, 3)),
            "queue": draw(st.sampled_from(QUEUES)),
            "need": draw(st.sampled_from(needs)),
        }
        return lambda cluster: cluster.submit(f"j{number}", **job)
    amount = draw(st.integers(0, 9))

    def event(cluster: Cluster) -> None:
        _disturb(cluster, kind, pick, amount)

    return event


def _disturb(cluster: Cluster, kind: str, pick: int, amount: int) -> None:
    note(f"{kind} {pick} {amount}")
    if kind == "wait":
        cluster.now_s += amount * 8_000
    elif kind == "gone":
        cluster.gone()
    elif kind in ("drain", "shrink"):
        name = sorted(cluster.nodes)[pick % len(cluster.nodes)]
        if kind == "drain":
            cluster.drain_node(name)
        else:
            cluster.node(name, amount)
    live = [name for name, job in cluster.jobs.items() if not job.status.phase.final]
    if not live:
        return
    name = live[pick % len(live)]
    if kind == "finish":
        cluster.finish(name)
    elif kind == "scale":
        cluster.change(name, workers_wanted=amount)
    elif kind in ("pause", "run"):
        cluster.change(name, intent=Intent.PAUSE if kind == "pause" else Intent.RUN)
    elif kind == "lose":
        cluster.change(name, placements=cluster.jobs[name].placements[1:])


def histories_of(needs: tuple[Resources, ...]) -> st.SearchStrategy[tuple[Event, ...]]:
    return st.integers(1, 14).flatmap(lambda n: st.tuples(*(events(i, needs) for i in range(n))))


histories = histories_of(NEEDS)


@settings(max_examples=150, deadline=None)
@given(clusters(), histories)
def test_a_plan_that_was_applied_and_is_planned_again_changes_nothing(
    cluster: Cluster, history: tuple[Event, ...]
) -> None:
    for event in history:
        event(cluster)
        made = cluster.step()
        again = cluster.plan()
        assert not again.changes, (_told(made), _told(again), cluster)


@settings(max_examples=150, deadline=None)
@given(clusters(), histories)
def test_whatever_happened_it_comes_to_rest(cluster: Cluster, history: tuple[Event, ...]) -> None:
    for event in history:
        event(cluster)
        cluster.settle(rounds_max=12)


# With workers of one size no room is in the wrong pieces: nothing but need can move anybody.
same_size = histories_of(NEEDS[:1])


@settings(max_examples=120, deadline=None)
@given(clusters(), same_size)
def test_nobody_loses_a_worker_and_gets_one_while_nothing_else_happens(
    cluster: Cluster, history: tuple[Event, ...]
) -> None:
    for event in history:
        event(cluster)
        lost: set[str] = set()
        for _ in range(12):
            made = cluster.step()
            moved = {name for name, of in made.jobs.items() if _must_move(of)}
            assert not (lost - moved) & made.adds.keys(), (lost, _told(made), cluster)
            lost |= made.drains.keys() - moved
            cluster.gone()


@settings(max_examples=150, deadline=None)
@given(clusters(), histories)
def test_no_machine_is_promised_more_than_it_has_and_no_gang_is_partial(
    cluster: Cluster, history: tuple[Event, ...]
) -> None:
    for event in history:
        event(cluster)
        made = cluster.step()
        grown = {node for nodes in made.adds.values() for node in nodes}
        for node, taken in load(cluster.jobs.values()).items():
            if node in grown:
                assert within(amounts_of(taken), amounts_of(cluster.nodes[node].capacity))
        for name, of in made.jobs.items():
            job = cluster.jobs[name]
            if of.add:
                assert job.spec.workers_min <= len(running(job)) <= job.spec.workers_max
            if job.intent is Intent.RUN and not running(job):
                assert of.waits


@settings(max_examples=120, deadline=None)
@given(clusters(), histories)
def test_a_drained_machine_gets_empty(cluster: Cluster, history: tuple[Event, ...]) -> None:
    for event in history:
        event(cluster)
        cluster.step()
    for job in cluster.jobs.values():
        cluster.change(job.name, intent=Intent.RUN)
    first = sorted(cluster.nodes)[0]
    cluster.drain_node(first)
    cluster.settle()
    assert first not in load(cluster.jobs.values())


@settings(max_examples=120, deadline=None)
@given(clusters(), histories)
def test_the_order_in_which_facts_are_given_does_not_matter(
    cluster: Cluster, history: tuple[Event, ...]
) -> None:
    for event in history:
        event(cluster)
        made = cluster.plan()
        turned = Cluster(
            dict(reversed(cluster.nodes.items())),
            dict(reversed(cluster.jobs.items())),
            cluster.queues,
            cluster.now_s,
        )
        assert turned.plan() == made
        cluster.apply(made)


def _must_move(of: JobPlan) -> bool:
    """Whether somebody has to leave a machine, which is a reason of its own to go and come."""
    return any("drained" in leave.reason or "must leave" in leave.reason for leave in of.drain)


def _told(made: SchedulePlan) -> dict[str, object]:
    return {name: of for name, of in made.jobs.items() if of.add or of.drain}
