"""What a rollout is decided from, and what may be decided: plain values.

`DesiredService` is what users want of one service, `ServiceObservation` what is seen of it. A
controller may die at any moment, so nothing here but the plan and the service has to be remembered:
windows, loads and deaths are what the present controller has seen itself, and less of it only makes
it wait longer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from holdfast.serve.records import (
    WEIGHT_TOTAL,
    Counts,
    Gateway,
    Load,
    OutputStats,
    Replica,
    RolloutPlan,
    ServiceSpec,
    Variant,
)

STABLE: Final = "stable"
CANARY: Final = "canary"


@dataclass(frozen=True, slots=True)
class DesiredService:
    """What users want. `version`: what the service's target names now; None: nothing, and `trouble`
    says why. `unusable`: versions that must not be served, with the reason."""

    service: ServiceSpec
    version: int | None
    trouble: str = ""
    unusable: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Window:
    """What was counted of each version while the variants were these.

    `since_s`: when this controller began to look; `until_s`: the last time that enough replicas
    answered. Both are of the controller's wall clock. `looks`: the same counts in the parts of that
    time, of one look or of several.
    """

    variants: tuple[Variant, ...]
    since_s: float
    until_s: float
    counts: Mapping[int, Counts] = field(default_factory=dict)
    looks: tuple[Mapping[int, Counts], ...] = ()

    def looks_at(self, version: int) -> list[Counts]:
        return [look[version] for look in self.looks if version in look]


@dataclass(frozen=True, slots=True)
class LoadSample:
    """How busy a service was at a moment, over all its replicas. `refused`: since the sample
    before; `slow_ms`: the p99 of what was answered since then, 0 if nothing was."""

    at_s: float
    waiting: int
    running: int
    refused: int
    replicas: int
    slow_ms: float = 0.0

    @property
    def in_flight(self) -> int:
        return self.waiting + self.running


@dataclass(frozen=True, slots=True)
class ReplicaDeath:
    """A replica's process ended although nobody had asked it to. `own_fault`: by what its own code
    did, and not because it was killed; `versions`: what it had last said of them."""

    worker: int
    at_s: float
    own_fault: bool = False
    reason: str = ""
    versions: Mapping[int, Load] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ServiceObservation:
    """What is seen of one service. `job_replicas`: how many its job is told to have; None: there
    is no such job, or nobody knows. `since_s`: since when this controller has seen the stage and
    the variants as they are, by its own clock; None: nobody has looked. `watched`: what replicas
    have seen of the outputs of each version since the rollout began."""

    plan: RolloutPlan | None = None
    replicas: Mapping[int, Replica] = field(default_factory=dict)
    gateways: Mapping[str, Gateway] = field(default_factory=dict)
    window: Window | None = None
    samples: tuple[LoadSample, ...] = ()
    deaths: tuple[ReplicaDeath, ...] = ()
    job_replicas: int | None = None
    since_s: float | None = None
    watched: Mapping[int, OutputStats] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SetPlan:
    """Write `plan`, in the place of the one with the number `before` (0: there is none)."""

    service: str
    before: int
    plan: RolloutPlan


@dataclass(frozen=True, slots=True)
class ScaleJob:
    """Have the job of the service run so many replicas."""

    service: str
    replicas: int


Command = SetPlan | ScaleJob


class RolloutDecision(NamedTuple):
    """What to do, and a sentence for people that says why."""

    command: Command
    reason: str


# --- what replicas can carry -----------------------------------------------------------------


class Fleet:
    """The replicas that take requests, and what each of them holds."""

    def __init__(self, replicas: Mapping[int, Replica]) -> None:
        self.replicas = {
            worker: replica for worker, replica in replicas.items() if not replica.draining
        }

    def __len__(self) -> int:
        return len(self.replicas)

    def ready(self, version: int | None) -> int:
        """How many replicas could answer for this version now."""
        return sum(1 for state in self.states(version) if state is Load.READY)

    def states(self, version: int | None) -> list[Load]:
        """What those replicas say that have begun with it."""
        if version is None:
            return []
        return [
            replica.versions[version].state
            for replica in self.replicas.values()
            if version in replica.versions
        ]

    def failures(self, version: int, plan: int) -> dict[int, str]:
        """Which replicas could not load it, and why. What one says that has not followed this
        plan yet is of an earlier try."""
        return {
            worker: replica.versions[version].reason
            for worker, replica in sorted(self.replicas.items())
            if version in replica.versions
            and replica.versions[version].state is Load.FAILED
            and replica.plan >= plan
        }

    def allowed(self, version: int, beside: tuple[int | None, ...]) -> int:
        """The most weight that the replicas of `version` can carry: their part of the capacity of
        what is served now."""
        ready = self.ready(version)
        most = max(ready, *(self.ready(each) for each in beside)) if beside else ready
        return WEIGHT_TOTAL * ready // most if most else 0


# --- what a decision is made from -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RolloutContext:
    """All that a decision looks at. `plan` may differ from the observed one: what users asked
    for is noted in it."""

    desired: DesiredService
    observed: ServiceObservation
    now_s: float
    plan: RolloutPlan
    fleet: Fleet

    @property
    def since_s(self) -> float:
        """Since when the stage and the variants are these, by the clock of whoever decides. The
        plan itself is dated by the clock of whoever wrote it, which may be an hour off."""
        seen_s = self.observed.since_s
        return self.plan.since_s if seen_s is None else seen_s

    @property
    def beside(self) -> tuple[int | None, ...]:
        """What a version's capacity is compared with: all that is served now."""
        return (self.plan.stable, *(variant.version for variant in self.plan.variants))

    def allowed(self, version: int) -> int:
        """The most weight that this version may have now."""
        return self.fleet.allowed(version, self.beside)


def weight_of(plan: RolloutPlan, version: int | None) -> int:
    """The share of the requests that a version has."""
    return sum(variant.weight for variant in plan.variants if variant.version == version)


def applied_by_all(plan: RolloutPlan, gateways: Mapping[str, Gateway], name: str) -> bool:
    """Whether every living gateway sends requests as this plan says."""
    return all(gateway.applied.get(name, 0) >= plan.number for gateway in gateways.values())
