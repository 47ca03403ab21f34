"""Short ways to say what is seen of a service."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from holdfast.serve.records import (
    LATENCY_BOUNDS_MS,
    Counts,
    Gateway,
    Limits,
    Load,
    Loaded,
    Replica,
    RolloutPlan,
    RolloutPolicy,
    RolloutStage,
    ServiceSpec,
    Variant,
)
from holdfast.serve.rollout.advance import advance
from holdfast.serve.rollout.facts import (
    DesiredService,
    RolloutDecision,
    ScaleJob,
    ServiceObservation,
    SetPlan,
    Window,
)

NAME = "digits"
NOW_S = 1_000.0
POLICY = RolloutPolicy(steps=(500, 5_000), hold_s=5.0, ready_s=60.0, requests_min=20)


def service(**more: Any) -> ServiceSpec:
    given = {"replicas_min": 3, "replicas_max": 3, "policy": POLICY, **more}
    return ServiceSpec(NAME, NAME, "prod", limits=Limits(timeout_s=10.0), **given)


def desired(version: int | None = 2, trouble: str = "", **more: Any) -> DesiredService:
    unusable = more.pop("unusable", {})
    return DesiredService(service(**more), version, trouble, unusable)


def replica(worker: int, *ready: int, **states: Any) -> Replica:
    """One that is ready for these. `failed`, `loading`: others; `plan`: what it follows."""
    versions = {version: Loaded(Load.READY) for version in ready}
    versions |= {version: Loaded(Load.LOADING) for version in states.pop("loading", ())}
    versions |= {version: Loaded(Load.FAILED, "no head") for version in states.pop("failed", ())}
    given = {"plan": 99, "node": f"m{worker}", "started_s": 0.0, **states}
    return Replica(NAME, worker, "h", 1, 2, versions=versions, **given)


def fleet(*replicas: Replica) -> dict[int, Replica]:
    return {each.worker: each for each in replicas}


def three(*ready: int, **states: Any) -> dict[int, Replica]:
    return fleet(*(replica(worker, *ready, **dict(states)) for worker in (1, 2, 3)))


def gateway(name: str, applied: int) -> Gateway:
    return Gateway(name, "here", "h:1", {NAME: applied})


def steady(stable: int = 1, previous: int | None = None, **more: Any) -> RolloutPlan:
    hold = (stable, *(() if previous is None else (previous,)))
    given = {
        "number": 10,
        "stage": RolloutStage.STEADY,
        "hold": hold,
        "variants": (Variant("stable", stable, 10_000),),
        "stable": stable,
        "previous": previous,
        "since_s": NOW_S - 50.0,
        "replicas": 3,
        **more,
    }
    return RolloutPlan(**given)


def loading(next_: int = 2, stable: int = 1, **more: Any) -> RolloutPlan:
    hold = (stable, next_)
    given = {"stage": RolloutStage.LOADING, "next": next_, "hold": hold, **more}
    return steady(stable, **given)


def shifting(weight: int, next_: int = 2, stable: int = 1, **more: Any) -> RolloutPlan:
    variants = (Variant("stable", stable, 10_000 - weight), Variant("canary", next_, weight))
    return loading(next_, stable, **{"stage": RolloutStage.SHIFTING, "variants": variants, **more})


def counts(requests: int, errors: int = 0, slow: int = 0) -> Counts:
    buckets = [0] * (len(LATENCY_BOUNDS_MS) + 1)
    buckets[8], buckets[16] = requests - slow, slow
    return Counts(requests, errors, tuple(buckets))


def window(plan: RolloutPlan, seen_s: float = 50.0, **by_version: Counts) -> Window:
    """What was counted while the variants were these, for so long; `v1=counts(...)`."""
    held = {int(name[1:]): each for name, each in by_version.items()}
    return Window(plan.variants, NOW_S - seen_s, NOW_S, held)


def plan_of(decisions: list[RolloutDecision]) -> RolloutPlan:
    """The one plan that was decided."""
    (command,) = [d.command for d in decisions if isinstance(d.command, SetPlan)]
    return command.plan


def scaled(decisions: list[RolloutDecision]) -> list[int]:
    return [d.command.replicas for d in decisions if isinstance(d.command, ScaleJob)]


def weights(plan: RolloutPlan) -> dict[int, int]:
    return {variant.version: variant.weight for variant in plan.variants}


def settled(
    wanted: DesiredService, observed: ServiceObservation, now_s: float = NOW_S
) -> ServiceObservation:
    """Let it decide until nothing changes."""
    for _ in range(10):
        decisions = advance(wanted, observed, now_s)
        if not any(isinstance(decision.command, SetPlan) for decision in decisions):
            return observed
        observed = replace(observed, plan=plan_of(decisions))
    raise AssertionError(f"it does not come to rest: {observed.plan}")
