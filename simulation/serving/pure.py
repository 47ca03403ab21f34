"""The gateway's pure functions, with what they gave before.

`parts`, `resources` and `steps` are the real ones. They cost more than all the rest of a world, so
what they gave is kept, under those parts of what they were given that can matter to them. That
nothing else matters, and that nothing old is reused where it should not be, is checked now and then
by working all of it out anew: another answer is a violation. A hunt for mutants keeps nothing
from one world to the next.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Final

from holdfast.serve.gateway import applying as ordering
from holdfast.serve.gateway import resources as making
from holdfast.serve.gateway.applying import Step
from holdfast.serve.gateway.clusters import Json
from holdfast.serve.gateway.resources import VERSION, ServiceResources
from holdfast.serve.gateway.state import Front, GatewayState, KnownService
from holdfast.serve.records import Load, Replica
from simulation.kernel import Violation
from simulation.serving.configuration import Cluster, Table, cluster_of, table_of

PURE: Final = "what Envoy gets depends on what is known, and on nothing else"
_ASKED_AGAIN: Final = 150
# Files of a state have some 70 KB. Those of a world's beginning are the same in most worlds.
_FILES_KEPT: Final = 2_000
_OTHERS_KEPT: Final = 8_000

Files = Mapping[str, Json]


class KnownResults:
    """What they gave, in all worlds of one process that run the same code. Bounded."""

    def __init__(self) -> None:
        self.files: OrderedDict[object, Files] = OrderedDict()
        self.parts: dict[Front, dict[str, ServiceResources]] = {}
        self.steps: dict[object, tuple[Step, ...]] = {}
        self.clusters: dict[str, dict[str, Cluster]] = {}
        self.tables: dict[str, Table] = {}
        self.read: dict[int, tuple[Json, Cluster]] = {}  # by a cluster's identity, as it is kept

    def bound(self) -> None:
        while len(self.files) > _FILES_KEPT:
            self.files.popitem(last=False)
        for each in (self.steps, self.clusters, self.tables, self.read):
            if len(each) > _OTHERS_KEPT:
                each.clear()


class Pure:
    """The functions, for one world."""

    def __init__(self, seed: int, kept: KnownResults) -> None:
        self._kept = kept
        self._facts: dict[int, tuple[Replica, tuple[object, ...]]] = {}
        self._asked = seed % _ASKED_AGAIN  # in each world at another time
        kept.bound()

    def resources(self, state: GatewayState, made: Callable[[GatewayState, Files], None]) -> Files:
        """As the gateway works it out. `made` hears of those that were not known yet."""
        kept = self._kept
        key = (state.front, state.stale_s, tuple(map(self._matters, state.services)))
        found = kept.files.get(key)
        self._asked += 1
        if found is None:
            parts = making.parts(state, kept.parts.get(state.front))
            found = making.resources(state, parts)
            made(state, found)
            kept.parts[state.front], kept.files[key] = parts, found
        else:
            kept.files.move_to_end(key)
        if self._asked % _ASKED_AGAIN == 0 and making.resources(state) != found:
            raise Violation(PURE, str(state))
        return found

    def steps(self, before: Files, files: Files) -> tuple[Step, ...]:
        key = (_versions(before), _versions(files))
        found = self._kept.steps.get(key)
        if found is None:
            found = self._kept.steps[key] = tuple(ordering.steps(before, files))
        return found

    def clusters(self, content: Json) -> Mapping[str, Cluster]:
        """A file as Envoy reads it. Its version is the digest of what is in it."""
        found = self._kept.clusters.get(content[VERSION])
        if found is None:
            found = {str(one["name"]): self._cluster(one) for one in content["resources"]}
            self._kept.clusters[content[VERSION]] = found
        return found

    def _cluster(self, one: Json) -> Cluster:
        """Most clusters of a file are those of the file before."""
        found = self._kept.read.get(id(one))
        if found is None:
            found = self._kept.read[id(one)] = (one, cluster_of(one))
        return found[1]

    def table(self, content: Json) -> Table:
        found = self._kept.tables.get(content[VERSION])
        if found is None:
            found = self._kept.tables[content[VERSION]] = table_of(content)
        return found

    def _matters(self, known: KnownService) -> tuple[object, ...]:
        service = known.service
        replicas = tuple([self._reported(one.replica) for one in known.replicas])
        variants = known.plan.variants if known.plan is not None else ()
        return (service.name, service.limits, known.lost_s is None, variants, replicas)

    def _reported(self, replica: Replica) -> tuple[object, ...]:
        """Values are never changed, only replaced: what is said of one is worked out once."""
        found = self._facts.get(id(replica))
        if found is None:
            ready = tuple(v for v, held in replica.versions.items() if held.state is Load.READY)
            who = (replica.worker, replica.grpc_port, replica.region, replica.draining)
            told = (*who, *sorted(ready))
            found = self._facts[id(replica)] = (replica, told)
        return found[1]


def _versions(files: Files) -> tuple[str, ...]:
    return tuple([content[VERSION] for content in files.values()])
