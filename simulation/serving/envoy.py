"""A simulated Envoy: it takes files late, one after the other and each as a whole, warms clusters
before it uses them, checks replicas' health, ejects the broken, and tries requests again."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Final

from holdfast.serve.gateway.clusters import Json
from holdfast.serve.gateway.resources import CLUSTERS_FILE, LISTENER_FILE, ROUTES_FILE, VERSION
from holdfast.wire.limits import EJECT_FAILURES, EJECT_S, HEALTH_CHECK_TIMEOUT_S
from simulation.kernel import SimulatedProcess
from simulation.serving.configuration import Cluster, Host, Table
from simulation.serving.traffic import KINDS

if TYPE_CHECKING:
    from simulation.serving.replica import SimulatedReplica
    from simulation.serving.world import World

TAKE_S: Final = 0.003
SLOW_S: Final = (0.2, 1.5)
WARM_S: Final = (0.002, 0.02)
START_S: Final = (0.3, 0.6)


class Envoy(SimulatedProcess):
    """One Envoy. It goes on while its gateway's process is away. `news`: it has changed."""

    def __init__(self, world: World, name: str, news: Callable[[], None]) -> None:
        super().__init__(world.kernel, name)
        self.world = world
        self._news = news
        self.files: dict[str, Json] = {}  # on disk
        self._taken: dict[str, str] = {}
        self.active: dict[str, Cluster] = {}
        self._warming: dict[str, Cluster] = {}
        self._behind_s: dict[str, float] = {}  # since when a cluster is not what it was given as
        self.table: Table | None = None
        self.answering = False
        self._checked_s: dict[str, float] = {}  # a host's address -> when it was checked first
        self._failed: dict[str, int] = {}  # ... how often in a row a request to it was broken
        self._ejected_s: dict[str, float] = {}  # ... until when it gets none

    # --- files ------------------------------------------------------------------------------------

    def write(self, name: str, content: Json) -> None:
        """A file for it; it looks a little later, and takes what is there then."""
        self.files[name] = content
        if self.answering:
            slow = self.world.faults.strikes("slow envoy")
            apply_s = self.world.settings.apply_s
            delay_s = self.kernel.between(*(SLOW_S if slow else (TAKE_S, TAKE_S + apply_s)))
            self.after(delay_s, lambda: self._look(name))

    def start(self) -> None:
        """With the files that are there: it answers when all of them are taken and warm."""
        self.begin()
        self.answering = False
        self.active, self._warming, self._taken, self.table = {}, {}, {}, None
        self._behind_s = {}
        self._checked_s, self._failed, self._ejected_s = {}, {}, {}
        self.after(self.kernel.between(*START_S), self._boot)

    def crash(self) -> None:
        self.die()
        self.answering = False

    def taken(self, names: Collection[str]) -> bool:
        return all(self._taken.get(name) == self.files[name][VERSION] for name in names)

    def warm(self, clusters: Collection[str]) -> bool:
        """Whether it has the clusters as they are now, and has checked these."""
        return self.taken((CLUSTERS_FILE,)) and all(
            name in self.active and name not in self._warming for name in clusters
        )

    def settled(self, clusters: Collection[str]) -> bool:
        """Whether it has taken up the last change of these."""
        return self.taken((CLUSTERS_FILE,)) and self._warming.keys().isdisjoint(clusters)

    def healthy(self) -> frozenset[tuple[str, int]]:
        """What its admin socket says."""
        return frozenset(
            (host.address, host.port)
            for cluster in self.active.values()
            for level in cluster.levels
            for host in level
            if self._passes(host.address)
        )

    def sends_to(self) -> set[int]:
        """The versions that its routes name."""
        route = self.table.route(*KINDS[0]) if self.table is not None else None
        return {variant.version for variant in route.variants} if route is not None else set()

    def _boot(self) -> None:
        self.active = dict(self.world.pure.clusters(self.files[CLUSTERS_FILE]))
        self._check(self.active.values())
        self.table = self.world.pure.table(self.files[ROUTES_FILE])
        for name in (CLUSTERS_FILE, ROUTES_FILE, LISTENER_FILE):
            self._taken[name] = self.files[name][VERSION]
        self.answering = True
        self.tell("answers")
        self._news()

    def _look(self, name: str) -> None:
        content = self.files[name]
        if self._taken.get(name) == content[VERSION]:
            return
        self._taken[name] = content[VERSION]
        if name == CLUSTERS_FILE:
            self._take_clusters(content)
        elif name == ROUTES_FILE:
            self.world.traffic.flow()
            self.table = self.world.pure.table(content)
            self.tell("routes", content[VERSION])
            self.world.checks.routes_taken(self)
            self.world.traffic.probe()
        self._news()

    def _take_clusters(self, content: Json) -> None:
        found = self.world.pure.clusters(content)
        gone = [name for name in self.active if name not in found]
        if gone:
            self.world.checks.clusters_gone(self, gone)
        self.active = {name: one for name, one in self.active.items() if name in found}
        self._warming = {name: one for name, one in self._warming.items() if name in found}
        self._behind_s = {name: at_s for name, at_s in self._behind_s.items() if name in found}
        self.world.checks.changes_taken(self, self._behind_s)
        slow: list[Cluster] = []
        fast: list[Cluster] = []
        for name, cluster in found.items():
            if self._warming.get(name, self.active.get(name)) == cluster:
                continue
            # Also one that becomes again what it still is: it is checked anew.
            self._behind_s.setdefault(name, self.kernel.now_s)
            self._warming[name] = cluster
            (slow if self._hangs(cluster) else fast).append(cluster)
        if fast:
            self.after(self.kernel.between(*WARM_S), lambda: self._warmed(fast))
        if slow:
            self.after(HEALTH_CHECK_TIMEOUT_S, lambda: self._warmed(slow))

    def _hangs(self, cluster: Cluster) -> bool:
        """Whether a check of one of its hosts has no answer."""
        replicas = self.world.by_address
        return any(replicas[host.address].stopped for level in cluster.levels for host in level)

    def _warmed(self, clusters: list[Cluster]) -> None:
        self._check(clusters)
        for cluster in clusters:
            if self._warming.get(cluster.name) is cluster:
                del self._warming[cluster.name], self._behind_s[cluster.name]
                self.active[cluster.name] = cluster
        self._news()

    def _check(self, clusters: Collection[Cluster]) -> None:
        now_s = self.kernel.now_s
        for cluster in clusters:
            for level in cluster.levels:
                for host in level:
                    self._checked_s.setdefault(host.address, now_s)

    # --- who is asked -----------------------------------------------------------------------------

    def _passes(self, address: str) -> bool:
        return self.world.by_address[address].believed(self._checked_s.get(address, -1.0))

    def trusts(self, replica: SimulatedReplica) -> bool:
        """Whether it would send requests to this process, wherever it stands in its files."""
        ejected = self.kernel.now_s < self._ejected_s.get(replica.host, 0.0)
        return not ejected and self._passes(replica.host)

    def usable(self, cluster: Cluster, host: Host) -> bool:
        """Whether it takes this host for healthy."""
        address = host.address
        if host.draining:
            return False
        if self._ejected_s and self.kernel.now_s < self._ejected_s.get(address, 0.0):
            return False
        if not cluster.checked:
            return True
        return self.world.by_address[address].believed(self._checked_s.get(address, -1.0))

    def pools(
        self, cluster: Cluster, left_out: Collection[int] = ()
    ) -> list[tuple[float, list[Host]]]:
        """The levels that get requests: the share of each, and its hosts. None is healthy: all are
        tried, unless some levels were left out for a retry."""
        found, left, usable = [], 1.0, self.usable
        for at, level in enumerate(cluster.levels):
            if at in left_out:
                continue
            hosts = [host for host in level if usable(cluster, host)]
            share = min(1.0, cluster.stay * len(hosts) / len(level), left)
            if share > 0.0:
                found.append((share, hosts))
                left -= share
        if found or left_out or cluster.panic <= 0.0:
            return found
        return [(float(len(level)), list(level)) for level in cluster.levels]

    def broken(self, host: Host) -> None:
        """A request to it was refused or had no answer."""
        count = self._failed.get(host.address, 0) + 1
        self._failed[host.address] = count
        if count >= EJECT_FAILURES:
            self._failed[host.address] = 0
            self._ejected_s[host.address] = self.kernel.now_s + EJECT_S

    def answered(self, host: Host) -> None:
        self._failed.pop(host.address, None)

    def replica(self, host: Host) -> SimulatedReplica:
        return self.world.by_address[host.address]
