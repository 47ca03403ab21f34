"""What must always be true of a service's plans, judged from the world's truth.

Nothing here asks the code under test. Truth is: what is written, which processes live and what they
have loaded, by which files each Envoy sends. What a request sees is in `promises`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.serve.records import WEIGHT_TOTAL, Load, RolloutPlan, RolloutStage
from holdfast.serve.rollout.facts import DesiredService, ServiceObservation
from simulation.kernel import Violation
from simulation.serving.promises import Promises
from simulation.serving.settings import BAD, NAME, Nature

if TYPE_CHECKING:
    from simulation.serving.world import World

LEADER: Final = "1: only the leader of the newest term writes a plan, upon the one before"
CAPACITY: Final = "8: no version gets more weight than its ready replicas can carry"
SHRINKS: Final = "8: a rollout never drops below the ready capacity it started with"
HELD: Final = "requests go to versions that are held"
ROUTED: Final = "a version that a gateway sends to is held"
WARM: Final = "what was stable before stays warm"
FAILED: Final = "a version that failed gets no requests"
RETIRED: Final = "a retired version gets no new requests"
JUDGED: Final = "a bad version never serves everything by its rollout"
SETTLES: Final = "every rollout ends: promoted, or failed with a reason"
DESIRED: Final = "what users want is served, if it can be"
QUIET: Final = "a service that nothing happens to is left alone"

# Plans of one world: more of them and something goes to and fro.
_PLANS_MAX: Final = 400
# What shows only beside the stable version: errors, and how long answers take.
_COMPARED: Final = frozenset({Nature.ERRING, Nature.SLOW, Nature.NONFINITE})
_UNDER_WAY: Final = (RolloutStage.LOADING, RolloutStage.SHIFTING)
# With these nobody may have sent to a version, or its counts were lost, or a step seemed longer:
# while they last, and for some time after them.
BLINDING: Final = frozenset(
    {
        "restart gateway",
        "pause gateway",
        "expire gateway",
        "kill envoy",
        "everything",
        "plane away",
        "pause replica",
        "silence",
        "clock jump",
    }
)
_BLIND_S: Final = 8.0
# How long all stays as it is before it counts as settled.
_REST_S: Final = 1.5


class Checks(Promises):
    """Looks at each plan as it is written, and at the end."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._settled_at_s: float | None = None
        self._began_s = 0.0  # the rollout that is under way
        self._blinded_s = -_BLIND_S

    # --- each plan ----------------------------------------------------------------------------

    def plan_written(
        self,
        term: int,
        before: RolloutPlan | None,
        after: RolloutPlan,
        desired: DesiredService,
        seen: ServiceObservation,
    ) -> None:
        world = self._world
        number = before.number if before is not None else 0
        if term != world.plane.leader or after.number != number + 1:
            raise Violation(LEADER, f"plan {after.number} of term {term} came after {number}")
        if after.number > _PLANS_MAX:
            raise Violation(QUIET, f"{after.number} plans")
        self._variants(before, after, desired)
        self._capacity(before, after, seen)
        self._gateways(after, seen)
        if before is not None:
            self._succession(before, after)

    def _variants(
        self, before: RolloutPlan | None, after: RolloutPlan, desired: DesiredService
    ) -> None:
        weights = {variant.version: variant.weight for variant in after.variants}
        if weights and (sum(weights.values()) != WEIGHT_TOTAL or not set(weights) <= {*after.hold}):
            raise Violation(HELD, f"{weights} of {after.hold}")
        failed = set(weights) & set(after.failed) - {after.stable}
        if failed:
            raise Violation(FAILED, f"{failed} have weight; {after.reason}")
        old = (
            {variant.version: variant.weight for variant in before.variants}
            if before is not None
            else {}
        )
        stable = before.stable if before is not None else None
        # One that was retired after the controller had looked is taken back next.
        for version in set(weights) & set(desired.unusable) - {stable}:
            if weights[version] > old.get(version, 0):
                raise Violation(RETIRED, f"version {version} gets {weights[version]}")

    def _capacity(
        self, before: RolloutPlan | None, after: RolloutPlan, seen: ServiceObservation
    ) -> None:
        """By what the controller could see when it decided. The stable version may always take
        everything back: it could carry it before."""
        old = (
            {variant.version: variant.weight for variant in before.variants}
            if before is not None
            else {}
        )
        stable = before.stable if before is not None else None
        ready = {
            version: sum(
                1
                for replica in seen.replicas.values()
                if not replica.draining
                and version in replica.versions
                and replica.versions[version].state is Load.READY
            )
            for version in {*old, *(variant.version for variant in after.variants)}
        }
        most = max(ready.values(), default=0)
        for variant in after.variants:
            grows = variant.weight > old.get(variant.version, 0)
            if (
                grows
                and variant.version != stable
                and variant.weight * most > WEIGHT_TOTAL * ready[variant.version]
            ):
                raise Violation(
                    CAPACITY, f"version {variant.version} has {variant.weight}, with {ready} ready"
                )

    def _gateways(self, after: RolloutPlan, seen: ServiceObservation) -> None:
        """Of those that are there, and were when the controller decided: it waits for whom it can
        see. One that came back after that is as one that is away."""
        world = self._world
        for gateway in world.gateways:
            there = gateway.name in world.plane.gateways and gateway.name in seen.gateways
            if not there or gateway.astray:
                continue
            gone = gateway.envoy.sends_to() - set(after.hold)
            if gone:
                raise Violation(
                    ROUTED,
                    f"{gateway.name} sends to {gone}, and plan {after.number} holds {after.hold}",
                )

    def _succession(self, before: RolloutPlan, after: RolloutPlan) -> None:
        world, service = self._world, self._world.plane.service
        if after.previous is not None and after.previous not in after.hold:
            raise Violation(WARM, f"{after.previous} is not in {after.hold}")
        promoted = after.stable != before.stable and after.stable is not None
        if promoted and before.stable is not None:
            if after.previous != before.stable and before.stable not in world.plane.retired:
                raise Violation(WARM, f"{before.stable} was stable, and {after.previous} is kept")
            natures = world.settings.natures
            nature = natures[after.stable or 0]
            # What is promised is that it does no worse than the stable one, which users may have
            # chosen though it fails or is slow: one that does the same is no worse.
            same = nature is natures[before.stable] and nature in _COMPARED
            worse = nature in BAD and not same
            by_itself = service.pinned is None and not service.split and before.stage in _UNDER_WAY
            # While gateways are away nobody sends to it, and nobody can know.
            seen = self._blinded_s < self._began_s - _BLIND_S
            if by_itself and worse and seen:
                raise Violation(JUDGED, f"version {after.stable} is {nature.value}")
        if after.next != before.next:
            self._began_s = world.now_s
        if after.replicas < before.replicas and after.stage in _UNDER_WAY:
            raise Violation(SHRINKS, f"{after.replicas} instead of {before.replicas}")

    def struck(self, kind: str) -> None:
        """This goes wrong now."""
        if kind in BLINDING:
            self._blinded_s = self._world.now_s

    def scaled(self, before: int, after: int) -> None:
        plan = self._world.plane.plan
        if after < before and plan is not None and plan.stage in _UNDER_WAY:
            raise Violation(SHRINKS, f"{after} replicas instead of {before}, in {plan.stage}")

    # --- peace ----------------------------------------------------------------------------------

    def peace_begins(self) -> None:
        self._settled_at_s = None

    def settled(self) -> bool:
        """Whether nothing is under way any more, for some time."""
        if not self._at_rest():
            self._settled_at_s = None
            return False
        if self._settled_at_s is None:
            self._settled_at_s = self._world.now_s
        return self._world.now_s > self._settled_at_s + _REST_S

    def _at_rest(self) -> bool:
        world, plane = self._world, self._world.plane
        plan = plane.plan
        if plan is None or plan.next is not None or plan.leaving:
            return False
        if not all(each.up and not each.stopped for each in world.processes()):
            return False
        if not all(mirror.receives for mirror in world.mirrors()):
            return False
        if plan.revision != plane.service.revision or plan.replicas != plane.job_replicas:
            return False
        # The first version of all is served unseen: one that kills whoever is asked goes on so.
        natures = world.settings.natures
        deadly = any(natures[variant.version] is Nature.CRASHING for variant in plan.variants)
        if not deadly and not plane.job_replicas == len(plane.replicas) == len(world.replicas):
            return False
        for gateway in world.gateways:
            told = plane.gateways.get(gateway.name)
            if told is None or told.applied.get(NAME) != plan.number:
                return False
        return self._served_as_wanted(plan)

    def _served_as_wanted(self, plan: RolloutPlan) -> bool:
        plane, weights = (
            self._world.plane,
            {variant.version: variant.weight for variant in plan.variants},
        )
        natures = self._world.settings.natures

        def usable(version: int) -> bool:
            return version not in plane.retired and version not in plan.failed

        split = {v: w for v, w in plane.service.split.items() if usable(v)}
        if split:
            # A version that some machines cannot load has what the others carry.
            picky = any(natures[version] is Nature.PICKY for version in split)
            return plan.stage is RolloutStage.SPLIT and (picky or set(weights) == set(split))
        wanted = plane.target if plane.service.pinned is None else plane.service.pinned
        if plan.stage is RolloutStage.STARTING:
            return not usable(wanted)
        alone = weights == {plan.stable: WEIGHT_TOTAL} and plan.stage is RolloutStage.STEADY
        return alone and (plan.stable == wanted or not usable(wanted))

    def unsettled(self) -> None:
        plan, plane = self._world.plane.plan, self._world.plane
        raise Violation(
            SETTLES,
            f"target {plane.target}, pinned {plane.service.pinned}, split {plane.service.split}, "
            f"retired {sorted(plane.retired)}, {len(plane.replicas)} replicas of "
            f"{plane.job_replicas}, gateways "
            f"{ {name: one.applied.get(NAME) for name, one in plane.gateways.items()} }: {plan}",
        )

    def at_the_end(self) -> None:
        """Of a storm and its peace."""
        world, plan = self._world, self._world.plane.plan
        assert plan is not None
        natures = world.settings.natures
        harmless = set(natures.values()).isdisjoint({Nature.CRASHING, Nature.FATAL})
        if not world.faults.struck and harmless:
            wrong = [v for v in plan.failed if natures[v] is Nature.GOOD]
            if wrong:
                raise Violation(DESIRED, f"{plan.failed} failed, and was good")
        self.end_of_requests(plan)
