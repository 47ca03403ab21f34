"""What is promised to a request, and what Envoy must be given so that it holds.

What an Envoy should send to, and to whom, is worked out here a second time from what its gateway
knows, in another way than the gateway's own code does it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from holdfast.serve.gateway.clusters import Json
from holdfast.serve.gateway.resources import CLUSTERS_FILE, ROUTES_FILE
from holdfast.serve.gateway.state import GatewayState, KnownService
from holdfast.serve.records import WEIGHT_TOTAL, RolloutPlan
from holdfast.wire.limits import HEALTH_CHECK_TIMEOUT_S, LOST_REPLICA_S
from simulation.kernel import Violation
from simulation.serving.configuration import Cluster, Route, WeightedCluster
from simulation.serving.plane import REPLICA
from simulation.serving.settings import NAME, Nature
from simulation.serving.traffic import KINDS

if TYPE_CHECKING:
    from simulation.serving.envoy import Envoy
    from simulation.serving.gateway import SimulatedGateway
    from simulation.serving.replica import SimulatedReplica
    from simulation.serving.world import World

ANSWERED: Final = "8: a request is answered, as long as one replica that can is healthy and known"
WEIGHTS: Final = "8: a gateway gives no version more than its part of the ready replicas"
ENDPOINTS: Final = "a cluster has exactly the replicas that can answer for it"
NAMED: Final = "a route names only clusters that Envoy has, checked and warm"
ASKED: Final = "no answer of a version that nobody asked for"
KEPT: Final = "8: a healthy replica is not forgotten because its registration is gone"
GONE: Final = "in peace no gateway knows of the dead"
HOME: Final = "our own region is asked before others"
TAKEN: Final = "a cluster that changes again and again is taken up all the same"
TAKEN_BACK: Final = "no request goes to a version that was taken back, once that is applied"

# How long Envoy may take for a change of a cluster: to look, late if it is slow, and to check a
# replica that hangs.
# Above this, a level keeps its requests while one of its hosts is healthy.
_ALWAYS_STAYS: Final = 100.0
_CHECKED_S: Final = 1.2
_SLOW_S: Final = 1.5
# A change is taken up when the checks of one that hangs are over.
_TAKEN_S: Final = HEALTH_CHECK_TIMEOUT_S + 0.1
# While a replica hangs, each change of its cluster takes a second, and the next change begins anew.
_HUNG_S: Final = 4.0


class Promises:
    """Looks at what Envoys are given, at where requests go, and at what becomes of them."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._desired = {1}
        self._answered: dict[str, set[int]] = {}  # gateway -> versions of its answers, in peace

    def desired_changed(self) -> None:
        """Users have asked for something."""
        plane = self._world.plane
        self._desired |= {plane.target, *plane.service.split}
        if plane.service.pinned is not None:
            self._desired.add(plane.service.pinned)

    # --- what Envoy is given ----------------------------------------------------------------------

    def resources_made(self, state: GatewayState, files: Mapping[str, Json]) -> None:
        """Each time that it is worked out."""
        pure = self._world.pure
        table, clusters = pure.table(files[ROUTES_FILE]), pure.clusters(files[CLUSTERS_FILE])
        for known in state.services:
            if known.plan is None or not known.plan.variants:
                continue
            shares = set()
            for kind in KINDS:
                route = table.route(*kind)
                if route is None or not route.variants:
                    raise Violation(ANSWERED, f"there is no way for {kind}")
                shares.add(
                    tuple(
                        (variant.version, variant.weight, variant.instead)
                        for variant in route.variants
                    )
                )
            if len(shares) > 1:
                raise Violation(WEIGHTS, f"it depends on how one asks: {shares}")
            for kind in (KINDS[0], KINDS[-1]):
                route = table.route(*kind)
                assert route is not None
                self._route(known, route, clusters)
                for variant in route.variants:
                    self._at_home(known, state.front.region, clusters[variant.cluster])

    def _route(self, known: KnownService, route: Route, clusters: Mapping[str, Cluster]) -> None:
        assert known.plan is not None
        versions = [variant.version for variant in known.plan.variants]
        able = {
            one.replica.worker: {version for version in versions if one.ready(version)}
            for one in known.replicas
            if not one.draining
        }
        some = sum(bool(each) for each in able.values())
        if route.total != WEIGHT_TOTAL:
            raise Violation(WEIGHTS, f"the weights sum up to {route.total}")
        for variant in route.variants:
            if variant.version not in versions:
                raise Violation(WEIGHTS, f"version {variant.version} has no variant: {versions}")
            have = sum(variant.version in each for each in able.values())
            alone = variant.version == versions[0] or not any(
                versions[0] in one for one in able.values()
            )
            if not alone and variant.weight * some > WEIGHT_TOTAL * have:
                raise Violation(
                    WEIGHTS,
                    f"version {variant.version} has {variant.weight}, on {have} of {some} replicas",
                )
            self._hosts(known, variant, clusters)

    def _hosts(
        self, known: KnownService, variant: WeightedCluster, clusters: Mapping[str, Cluster]
    ) -> None:
        cluster = clusters.get(variant.cluster)
        if cluster is None:
            raise Violation(NAMED, f"{variant.cluster} is routed to, and not made")
        can = {
            (one.replica.host, one.draining): one.ready(variant.version)
            for one in known.replicas
            if one.ready(variant.version)
            or (variant.instead is not None and one.ready(variant.instead))
        }
        found = {
            (host.address, host.draining): level
            for level, hosts in enumerate(cluster.levels)
            for host in hosts
        }
        if found.keys() != can.keys():
            raise Violation(ENDPOINTS, f"{cluster.name} has {sorted(found)}, not {sorted(can)}")
        # Whoever has it is asked before those who only have the other.
        first = max((level for key, level in found.items() if can[key]), default=-1)
        if any(level <= first for key, level in found.items() if not can[key]):
            raise Violation(ENDPOINTS, f"{cluster.name} has {found}")

    def _at_home(self, known: KnownService, region: str, cluster: Cluster) -> None:
        regions = {one.replica.host: one.replica.region for one in known.replicas}
        levels = [{regions[host.address] for host in level} for level in cluster.levels]
        if cluster.stay > _ALWAYS_STAYS:
            levels.pop()  # of those who have only the other version, wherever they are
        for at, level in enumerate(levels):
            if at and level <= {"", region}:
                raise Violation(HOME, f"{cluster.name} has {levels}, seen from {region}")

    def known_now(self, gateway: SimulatedGateway, before: Sequence[KnownService]) -> None:
        """What the gateway knows has been looked at anew."""
        there = {one.address for known in gateway.services for one in known.replicas}
        if all(one.address in there for known in before for one in known.replicas):
            return
        latest_s = self._latest_s()
        used = {worker for (worker, _), at_s in gateway.ready_since_s.items() if at_s <= latest_s}
        for known in before:
            for one in known.replicas:
                if one.address in there or one.replica.worker not in used:
                    continue
                replica = self._world.by_address[one.replica.host]
                lost_s = 0.0 if one.lost_s is None else self._world.now_s - one.lost_s
                if replica.well and gateway.envoy.trusts(replica) and lost_s < LOST_REPLICA_S:
                    raise Violation(KEPT, f"{gateway.name} has forgotten {replica.name}")

    def routes_taken(self, envoy: Envoy) -> None:
        assert envoy.table is not None
        for kind in KINDS:
            route = envoy.table.route(*kind)
            for variant in route.variants if route is not None else ():
                if variant.cluster not in envoy.active:
                    raise Violation(NAMED, f"{envoy.name} has no {variant.cluster}")

    def clusters_gone(self, envoy: Envoy, gone: Sequence[str]) -> None:
        assert envoy.table is not None
        for kind in KINDS:
            route = envoy.table.route(*kind)
            for variant in route.variants if route is not None else ():
                if variant.cluster in gone:
                    raise Violation(NAMED, f"{envoy.name} has {variant.cluster} no more")

    def changes_taken(self, envoy: Envoy, behind_s: Mapping[str, float]) -> None:
        """Before it reads a file. `behind_s`: since when it uses another form of a cluster than the
        one that it was given. One that is slow to read may be given the next too soon."""
        if self._world.faults.rates["slow envoy"]:
            return
        for name, since_s in behind_s.items():
            if self._world.now_s > since_s + _TAKEN_S:
                raise Violation(TAKEN, f"{envoy.name} has had no {name} since {since_s:.3f}")

    # --- a request --------------------------------------------------------------------------------

    def routed(self, gateway: SimulatedGateway, variant: WeightedCluster) -> None:
        """A request goes this way: some plan says so that is not older than what the gateway has
        told everybody that it has applied."""
        told = self._world.plane.gateways.get(gateway.name)
        since = told.applied.get(NAME, 0) if told is not None else 0
        if not since:
            return
        for plan in self._world.plans[since - 1 :]:
            if any(each.version == variant.version for each in plan.variants):
                return
        raise Violation(
            TAKEN_BACK,
            f"{gateway.name} has applied plan {since}, and sends to version {variant.version}",
        )

    def able(self, gateway: SimulatedGateway, variant: WeightedCluster) -> list[SimulatedReplica]:
        """The replicas that are healthy, could answer, and are known to the gateway and its Envoy:
        for long enough that Envoy has them by now."""
        world = self._world
        if world.settings.natures[variant.version] is Nature.CRASHING:
            return []  # whoever is asked dies
        latest_s = self._latest_s()
        found = []
        for (worker, version), since_s in gateway.ready_since_s.items():
            replica = world.replicas.get(worker)
            if (
                version in (variant.version, variant.instead)
                and since_s <= latest_s
                and replica is not None
                and replica.well
                and replica.has(version)
                and gateway.envoy.trusts(replica)
            ):
                found.append(replica)
        return found

    def _latest_s(self) -> float:
        """What a gateway has handed over before this moment, its Envoy has by now."""
        world = self._world
        late_s = _CHECKED_S + world.settings.apply_s
        if world.faults.rates["slow envoy"]:
            late_s += _SLOW_S
        if world.now_s < world.hung_until_s:
            late_s += _HUNG_S
        return world.now_s - late_s

    def turned_away(self, gateway: SimulatedGateway, route: Route | None) -> None:
        """The gateway answered itself, that it has nothing."""
        self._world.happened["turned away"] += 1
        applied = gateway.applied
        if applied is None:
            return
        for known in applied.services:
            if known.plan is not None and known.plan.variants:
                status = route.status if route is not None else None
                raise Violation(ANSWERED, f"{gateway.name} answers {status} by itself")

    def answered(self, gateway: SimulatedGateway, variant: WeightedCluster, version: int) -> None:
        if version not in (variant.version, variant.instead) or version not in self._desired:
            raise Violation(ASKED, f"version {version} answered a request for {variant}")
        self._answered.setdefault(gateway.name, set()).add(version)

    def lost(
        self,
        gateway: SimulatedGateway,
        variant: WeightedCluster,
        stayed: Sequence[SimulatedReplica],
        why: list[str],
    ) -> None:
        """Nobody answered it, and these were there the whole time."""
        well = [replica.name for replica in stayed if replica.well]
        if well:
            raise Violation(
                ANSWERED,
                f"{gateway.name} lost a request for version {variant.version} ({'; '.join(why)}), "
                f"and {', '.join(well)} could have answered it",
            )

    def end_of_requests(self, plan: RolloutPlan) -> None:
        """All is settled: whoever asks now is answered, by what the plan says."""
        wanted = {variant.version for variant in plan.variants}
        natures = self._world.settings.natures
        deadly = any(natures[version] is Nature.CRASHING for version in wanted)
        for gateway in self._world.gateways:
            found = gateway.envoy.sends_to()
            if not found <= wanted:
                raise Violation(TAKEN_BACK, f"{gateway.name} sends to {found}, not to {wanted}")
            for known in gateway.services:
                for one in known.replicas:
                    worker = one.replica.worker
                    # What went late in the storm may come after all else is settled.
                    if deadly or gateway.mirror.is_late((REPLICA, worker)):
                        continue
                    if not self._world.by_address[one.replica.host].up:
                        raise Violation(GONE, f"{gateway.name} knows {worker}")
