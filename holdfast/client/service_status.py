"""A service as it is now: what is wanted of it, what was decided, who serves it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.client import texts
from holdfast.wire.errors import Missing

if TYPE_CHECKING:
    from holdfast.client.opening import Opened
    from holdfast.serve.records import Gateway, Replica, RolloutPlan, ServiceSpec


@dataclass(frozen=True, slots=True)
class ObservedService:
    """A service as it is now. `wanted`: the version that it should serve, as far as it is known;
    `doing`: what its job says, for people."""

    service: ServiceSpec
    plan: RolloutPlan | None
    replicas: Mapping[int, Replica]
    gateways: Mapping[str, Gateway]
    wanted: int | None
    doing: str

    @property
    def name(self) -> str:
        return self.service.name

    def ready(self, version: int | None) -> int:
        """How many replicas have that version."""
        return sum(
            version in one.versions and one.versions[version].state.value == "ready"
            for one in self.replicas.values()
            if version is not None
        )

    def failed(self) -> str:
        """Why the wanted version is not served, and will not be until users ask anew."""
        if self.plan is None or self.wanted is None or self.plan.revision < self.service.revision:
            return ""
        return self.plan.failed.get(self.wanted, "")

    def settled(self) -> bool:
        """Whether what users want is what every gateway sends requests to."""
        plan = self.plan
        if plan is None or plan.revision < self.service.revision or not plan.variants:
            return False
        applied = [one.applied.get(self.name, 0) for one in self.gateways.values()]
        if not applied or min(applied) < plan.number:
            return False
        if self.service.split:
            return plan.stage.value == "split"
        one = len(plan.variants) == 1 and plan.stage.value == "steady"
        return one and plan.variants[0].version == self.wanted

    def progress(self) -> str:
        """What is being waited for, in a line."""
        if not self.replicas:
            return f"no replica yet: {self.doing}"
        text = f"{self.ready(self.wanted)} of {texts.many(len(self.replicas), 'replica')} ready"
        if self.wanted is not None:
            text += f" with version {self.wanted}"
        if not self.gateways:
            return f"{text}; no gateway yet"
        return f"{text}; {texts.one_line(self.plan.reason)}" if self.plan else text

    def dropped(self) -> str:
        """What is missing in its log and topic of predictions, and why now; "": nothing."""
        counts = [one.predictions_dropped for one in self.replicas.values()]
        troubles = sorted({one.predictions_trouble for one in self.replicas.values()} - {""})
        if not any(counts) and not troubles:
            return ""
        text = f"{texts.many(sum(counts), 'prediction')} dropped; every request was answered"
        return f"{text}; now: {'; '.join(troubles)}" if troubles else text

    def outlook(self) -> str:
        """Why its rollout is where it is, and what would let it go on."""
        from holdfast.serve.rollout.facts import DesiredService, ServiceObservation
        from holdfast.serve.rollout.outlook import outlook

        trouble = f"{self.service.model} has no {self.service.target}"
        desired = DesiredService(self.service, self.wanted, trouble)
        return outlook(desired, ServiceObservation(self.plan, self.replicas, self.gateways))


def observe_service(found: Opened, name: str) -> ObservedService:
    """All that is known of it now."""
    from holdfast.models.catalogue import Catalogue
    from holdfast.serve.records import job_name

    services = found.services()
    service = services.service(name)
    wanted: int | None = service.pinned
    if wanted is None:
        try:
            resolved = Catalogue(found.session).resolve(f"{service.model}@{service.target}")
            wanted = resolved.version.number
        except Missing:
            wanted = None
    try:
        status = found.plane.job(job_name(name)).status
        doing = f"{status.phase.value}: {texts.one_line(status.reason)}"
    except Missing:
        doing = "its job is gone; holdfast serve submits it again"
    return ObservedService(
        service,
        services.plan(name),
        services.replicas(name),
        services.gateways(),
        wanted,
        doing,
    )


def variants_of(plan: RolloutPlan | None) -> str:
    """`3`, or `3 95 %, 4 5 %`."""
    if plan is None or not plan.variants:
        return "-"
    if len(plan.variants) == 1:
        return str(plan.variants[0].version)
    return ", ".join(f"{variant.version} {variant.weight / 100:g} %" for variant in plan.variants)


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """A service at one moment, in short.

    `target` is what its users asked for, `wanted` the version that this names now, `version` the
    one that serves, `previous` the one that `rollback` goes to. `weights`: the share of each
    version that gets requests, in percent. `ready` of `replicas` replicas have `version`,
    `replicas_wanted` are to be there. `stage`: starting, loading, shifting, steady or
    split; empty: nothing is decided yet. `failed`: why the wanted version was taken back.
    `settled`: it serves what is wanted, behind every gateway. `urls`: of the gateways.
    """

    name: str
    model: str
    target: str
    wanted: int | None
    version: int | None
    previous: int | None
    weights: Mapping[int, float]
    ready: int
    replicas: int
    replicas_wanted: int
    stage: str
    why: str
    failed: str
    settled: bool
    urls: tuple[str, ...]


def status_of(observed: ObservedService) -> ServiceStatus:
    """The service in short."""
    service, plan = observed.service, observed.plan
    version = plan.stable if plan else None
    return ServiceStatus(
        service.name,
        service.model,
        service.target,
        observed.wanted,
        version,
        plan.previous if plan else None,
        {variant.version: variant.weight / 100 for variant in plan.variants} if plan else {},
        observed.ready(version),
        len(observed.replicas),
        plan.replicas if plan else service.replicas_min,
        plan.stage.value if plan else "",
        plan.reason if plan and observed.replicas else observed.doing,
        observed.failed(),
        observed.settled(),
        tuple(one.address for _, one in sorted(observed.gateways.items())),
    )
