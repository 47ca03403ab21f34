"""Short ways to say what is seen of a service."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from holdfast.serve.conduct import Decision, Desired, Observed, ScaleJob, SetCourse, Window
from holdfast.serve.records import (
    LATENCY_BOUNDS_MS,
    Arm,
    Counts,
    Course,
    Gateway,
    Limits,
    Load,
    Loaded,
    Replica,
    RolloutPolicy,
    Service,
    Stage,
)
from holdfast.serve.rollout import advance

NAME = "digits"
NOW_S = 1_000.0
POLICY = RolloutPolicy(steps=(500, 5_000), hold_s=5.0, ready_s=60.0, requests_min=20)


def service(**more: Any) -> Service:
    given = {"replicas_min": 3, "replicas_max": 3, "policy": POLICY, **more}
    return Service(NAME, NAME, "prod", limits=Limits(timeout_s=10.0), **given)


def desired(version: int | None = 2, trouble: str = "", **more: Any) -> Desired:
    unusable = more.pop("unusable", {})
    return Desired(service(**more), version, trouble, unusable)


def replica(worker: int, *ready: int, **states: Any) -> Replica:
    """One that is ready for these. `failed`, `loading`: others; `course`: what it follows."""
    versions = {version: Loaded(Load.READY) for version in ready}
    versions |= {version: Loaded(Load.LOADING) for version in states.pop("loading", ())}
    versions |= {version: Loaded(Load.FAILED, "no head") for version in states.pop("failed", ())}
    given = {"course": 99, "node": f"m{worker}", "started_s": 0.0, **states}
    return Replica(NAME, worker, "h", 1, 2, versions=versions, **given)


def fleet(*replicas: Replica) -> dict[int, Replica]:
    return {each.worker: each for each in replicas}


def three(*ready: int, **states: Any) -> dict[int, Replica]:
    return fleet(*(replica(worker, *ready, **dict(states)) for worker in (1, 2, 3)))


def gateway(name: str, applied: int) -> Gateway:
    return Gateway(name, "here", "h:1", {NAME: applied})


def steady(stable: int = 1, previous: int | None = None, **more: Any) -> Course:
    hold = (stable, *(() if previous is None else (previous,)))
    given = {
        "number": 10,
        "stage": Stage.STEADY,
        "hold": hold,
        "arms": (Arm("stable", stable, 10_000),),
        "stable": stable,
        "previous": previous,
        "since_s": NOW_S - 50.0,
        "replicas": 3,
        **more,
    }
    return Course(**given)


def loading(next_: int = 2, stable: int = 1, **more: Any) -> Course:
    hold = (stable, next_)
    given = {"stage": Stage.LOADING, "next": next_, "hold": hold, **more}
    return steady(stable, **given)


def shifting(weight: int, next_: int = 2, stable: int = 1, **more: Any) -> Course:
    arms = (Arm("stable", stable, 10_000 - weight), Arm("canary", next_, weight))
    return loading(next_, stable, **{"stage": Stage.SHIFTING, "arms": arms, **more})


def counts(requests: int, errors: int = 0, slow: int = 0) -> Counts:
    buckets = [0] * (len(LATENCY_BOUNDS_MS) + 1)
    buckets[8], buckets[16] = requests - slow, slow
    return Counts(requests, errors, tuple(buckets))


def window(course: Course, seen_s: float = 50.0, **by_version: Counts) -> Window:
    """What was counted while the arms were these, for so long; `v1=counts(...)`."""
    held = {int(name[1:]): each for name, each in by_version.items()}
    return Window(course.arms, NOW_S - seen_s, NOW_S, held)


def course_of(decisions: list[Decision]) -> Course:
    """The one course that was decided."""
    (command,) = [d.command for d in decisions if isinstance(d.command, SetCourse)]
    return command.course


def scaled(decisions: list[Decision]) -> list[int]:
    return [d.command.replicas for d in decisions if isinstance(d.command, ScaleJob)]


def weights(course: Course) -> dict[int, int]:
    return {arm.version: arm.weight for arm in course.arms}


def settled(wish: Desired, observed: Observed, now_s: float = NOW_S) -> Observed:
    """Let it decide until nothing changes."""
    for _ in range(10):
        decisions = advance(wish, observed, now_s)
        if not any(isinstance(decision.command, SetCourse) for decision in decisions):
            return observed
        observed = replace(observed, course=course_of(decisions))
    raise AssertionError(f"it does not come to rest: {observed.course}")
