"""Requests: many of them as numbers that replicas count, and some that are followed from the
gateway to their answer, try by try.

A followed request goes where Envoy's files say: by weight to a cluster, to a host that Envoy takes
for healthy, again to another one when the first is dead, hangs, or does not have the version. The
promise that is checked: if one of the replicas that could answer it when it was accepted stays well
until it ends, it is answered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.serve.gateway.routes import GRPC_PREFIX, tries
from simulation.serving.configuration import (
    BROKEN,
    NOT_HERE,
    REFUSED,
    Cluster,
    Host,
    Route,
    WeightedCluster,
)
from simulation.serving.settings import NAME, Nature

if TYPE_CHECKING:
    from simulation.serving.gateway import SimulatedGateway
    from simulation.serving.replica import SimulatedReplica
    from simulation.serving.world import World

TICK_S: Final = (0.3, 0.9)
CALM_TICK_S: Final = (0.6, 2.0)
RATE: Final = 1_600  # requests a second of each gateway
FLOW_S_MAX: Final = 0.25  # what is not counted for longer is not counted at all
COMPUTE_S: Final = (0.02, 0.25)
# The path and the service's header of each kind of request.
KINDS: Final = (
    (f"/v2/models/{NAME}/infer", ""),
    (f"/v2/models/{NAME}/infer", ""),
    (f"/predict/{NAME}", ""),
    ("/v2/models/another/infer", NAME),
    (f"{GRPC_PREFIX}ModelInfer", ""),
)


class Traffic:
    """What clients send to all gateways."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._flowed_s = 0.0
        self._probes = False

    def start(self) -> None:
        self._world.kernel.after(self._world.kernel.between(*TICK_S), self._tick)

    def _tick(self) -> None:
        self.flow()
        self._follow_some()
        pause_s = TICK_S if self._world.stormy else CALM_TICK_S
        self._world.kernel.after(self._world.kernel.between(*pause_s), self._tick)

    def probe(self) -> None:
        """Something has just changed: requests come right now."""
        if not self._probes:
            self._probes = True
            self._world.kernel.after(0.001, self._probe)

    def _probe(self) -> None:
        self._probes = False
        self._follow_some()

    def _follow_some(self) -> None:
        for gateway in self._world.gateways:
            if gateway.envoy.answering:
                Followed(self._world, gateway).begin()

    def flow(self) -> None:
        """What has come since the last time, as if all had stood as it stands now."""
        world = self._world
        passed_s = min(world.kernel.now_s - self._flowed_s, FLOW_S_MAX)
        self._flowed_s = world.kernel.now_s
        requests = int(RATE * passed_s)
        if not requests:
            return
        for gateway in world.gateways:
            envoy = gateway.envoy
            if not envoy.answering or envoy.table is None:
                continue
            route = envoy.table.route(*KINDS[0])
            for variant in route.variants if route is not None else ():
                cluster = envoy.active.get(variant.cluster)
                if cluster is not None:
                    self._share(gateway, variant, cluster, requests * variant.weight // route.total)  # type: ignore[union-attr]

    def _share(
        self, gateway: SimulatedGateway, variant: WeightedCluster, cluster: Cluster, requests: int
    ) -> None:
        envoy = gateway.envoy
        able = []
        for _, hosts in envoy.pools(cluster):
            for host in hosts:
                replica = envoy.replica(host)
                version = replica.answers(variant.version, variant.instead) if replica.up else None
                if version is not None and not replica.stopped:
                    able.append((replica, version))
        for replica, version in able:
            if replica.up:
                replica.serve(version, max(1, requests // len(able)))


class Followed:
    """One request."""

    __slots__ = (
        "_able",
        "_gateway",
        "_hosts",
        "_left_out",
        "_levels",
        "_route",
        "_spent_s",
        "_tries",
        "_variant",
        "_why",
        "_world",
    )

    def __init__(self, world: World, gateway: SimulatedGateway) -> None:
        self._world = world
        self._gateway = gateway
        self._tries = 0
        self._hosts: list[Host] = []
        self._levels: list[int] = []  # of the hosts that were tried
        self._left_out: set[int] = set()
        self._spent_s = 0.0
        self._why: list[str] = []

    def begin(self) -> None:
        world, table = self._world, self._gateway.envoy.table
        random = world.kernel.random
        route = table.route(*random.choice(KINDS)) if table is not None else None
        world.happened["request"] += 1
        if route is None or not route.variants:
            world.checks.turned_away(self._gateway, route)
            return
        self._route: Route = route
        place, self._variant = random.random() * route.total, route.variants[-1]
        for variant in route.variants:
            place -= variant.weight
            if place < 0:
                self._variant = variant
                break
        world.checks.routed(self._gateway, self._variant)
        # Those who could answer it now, each with its life.
        self._able = [
            (replica, replica.life, replica.pauses)
            for replica in world.checks.able(self._gateway, self._variant)
        ]
        self._try()

    def _try(self) -> None:
        """Again and again, as long as it fails at once."""
        while True:
            self._tries += 1
            host = self._chosen()
            if host is None:
                self._why.append("no host")
                self._lost()
                return
            self._hosts.append(host)
            failed = self._ask(host)
            if failed is None or not self._may_try_again(failed):
                return

    def _ask(self, host: Host) -> frozenset[str] | None:
        """How it failed at once; None: it goes on by itself."""
        kernel, replica, variant = (
            self._world.kernel,
            self._gateway.envoy.replica(host),
            self._variant,
        )
        if not replica.up:
            self._why.append(f"{replica.name} refused")
            self._gateway.envoy.broken(host)
            return REFUSED
        life = replica.life
        if replica.stopped:
            wait_s = min(self._route.retries.try_s, self._route.timeout_s - self._spent_s)
            self._spent_s += wait_s
            kernel.after(wait_s, lambda: self._hung(host))
            return None
        version = replica.answers(variant.version, variant.instead)
        if version is None:
            self._why.append(f"{replica.name} does not have it")
            return NOT_HERE
        if kernel.random.random() < 0.7:
            self._answered(host, replica, version)
            return None
        compute_s = kernel.between(*COMPUTE_S)
        kernel.after(compute_s, lambda: self._computed(host, replica, life, version))
        return None

    def _hung(self, host: Host) -> None:
        self._why.append(f"{host.address} hung")
        self._gateway.envoy.broken(host)
        self._go_on(BROKEN)

    def _computed(self, host: Host, replica: SimulatedReplica, life: int, version: int) -> None:
        if replica.life == life and not replica.stopped:
            self._answered(host, replica, version)
        else:
            self._why.append(f"{replica.name} died or stopped")
            self._gateway.envoy.broken(host)
            self._go_on(BROKEN)

    def _answered(self, host: Host, replica: SimulatedReplica, version: int) -> None:
        world = self._world
        self._gateway.envoy.answered(host)
        world.happened["answered again" if self._tries > 1 else "answered"] += 1
        world.checks.answered(self._gateway, self._variant, version)
        if world.settings.natures[version] is Nature.CRASHING and replica.up:
            replica.serve(version, 1)

    def _go_on(self, failed: frozenset[str]) -> None:
        if self._gateway.envoy.answering and self._may_try_again(failed):
            self._try()

    def _may_try_again(self, failed: frozenset[str]) -> bool:
        """Whether there is another try; if not, the request is lost."""
        retries = self._route.retries
        in_time = self._spent_s < self._route.timeout_s - 1e-6
        if self._tries <= retries.count and retries.upon & failed and in_time:
            return True
        self._lost()
        return False

    def _chosen(self) -> Host | None:
        envoy, retries = self._gateway.envoy, self._route.retries
        cluster = envoy.active.get(self._variant.cluster)
        if cluster is None:
            self._why.append(f"there is no cluster {self._variant.cluster}")
            return None
        pools = self._pools(cluster)
        if not pools:
            return None
        if retries.other_hosts:
            # It draws again, level and host, until it has one that was not tried: so often that it
            # finds one if there is any.
            others = [
                (share, [host for host in hosts if host not in self._hosts])
                for share, hosts in pools
            ]
            pools = [(share, hosts) for share, hosts in others if hosts] or pools
        random = self._world.kernel.random
        place = random.random() * sum(share for share, _ in pools)
        hosts = pools[-1][1]
        for share, each in pools:
            place -= share
            if place < 0:
                hosts = each
                break
        if not hosts:
            return None
        host = hosts[int(random.random() * len(hosts))]
        self._levels.append(next(at for at, each in enumerate(cluster.levels) if host in each))
        return host

    def _pools(self, cluster: Cluster) -> list[tuple[float, list[Host]]]:
        """After some tries the levels that were tried are left out, if there are others."""
        envoy, every = self._gateway.envoy, self._route.retries.same_level
        if self._hosts and len(self._hosts) % every == 0:
            self._left_out = set(self._levels)
        if self._left_out:
            others = envoy.pools(cluster, self._left_out)
            if others:
                return others
            self._left_out = set()
        return envoy.pools(cluster)

    def _lost(self) -> None:
        """Nobody answered. Whether somebody should have."""
        world = self._world
        world.happened["lost"] += 1
        stayed = [
            replica
            for replica, life, pauses in self._able
            if replica.life == life and replica.pauses == pauses and replica.up
        ]
        # All tries but one may meet broken ones, and the last one of them again. Two that hang take
        # all of a request's time.
        hung = sum(why.endswith("hung") for why in self._why)
        if len(set(self._hosts)) >= tries(self._gateway.front) - 1 or hung > 1:
            return
        world.checks.lost(self._gateway, self._variant, stayed, self._why)
