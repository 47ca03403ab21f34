"""Deliberate breakages of the gateway: of what Envoy is given, in which order, and of what stays
known when facts vanish."""

from __future__ import annotations

from typing import Any, Final

from holdfast.serve.gateway import applying, clusters, resources, routes, state
from holdfast.serve.gateway.applying import AwaitSettled, AwaitTaken, AwaitWarm
from holdfast.serve.gateway.resources import CLUSTERS_FILE
from holdfast.serve.gateway.state import KnownService
from simulation.breaking import Mutant, Patch


def _mutant(name: str, what: str, *patches: Patch) -> Mutant:
    return Mutant(f"gateway: {name}", what, patches)


def _without(kind: type[object]) -> Any:
    """The steps, but for those of this kind."""

    def make(old: Any) -> Any:
        return lambda before, files: (
            step for step in old(before, files) if not isinstance(step, kind)
        )

    return make


def _no_bridge(_: Any) -> Any:
    return lambda before, files: files[CLUSTERS_FILE]


def _no_retries(old: Any) -> Any:
    return lambda *given: {**old(*given), "num_retries": 0}


def _same_host(old: Any) -> Any:
    return lambda *given: {**old(*given), "retry_host_predicate": []}


def _no_broken_connections(old: Any) -> Any:
    return lambda *given: {**old(*given), "retry_on": "retriable-headers"}


def _counts_draining(_: Any) -> Any:
    return lambda self, version: sum(one.ready(version) for one in self.replicas)


def _unmarked(old: Any) -> Any:
    def endpoint(*arguments: Any, **named: Any) -> Any:
        made = old(*arguments, **named)
        made.pop("health_status", None)
        return made

    return endpoint


def _one_less(old: Any) -> Any:
    return lambda level: old(level)[:-1] or old(level)


def _no_spare(old: Any) -> Any:
    return lambda known, version, protocol, front, instead=None: old(
        known, version, protocol, front
    )


def _any_weight(_: Any) -> Any:
    return lambda variant, capacity, able: variant.weight


def _unshared(_: Any) -> Any:
    return lambda weights: weights


def _all_at_home(old: Any) -> Any:
    return lambda one, front: not old(one, front)


def _same_source(_: Any) -> Any:
    return lambda *arguments, **named: ()


def _forgets(_: Any) -> Any:
    return lambda *arguments: False


def _keeps(_: Any) -> Any:
    return lambda *arguments: True


def _first_plan(old: Any) -> Any:
    """The plan that it knew first stays for ever."""

    def service(before: Any, found: Any, *others: Any) -> Any:
        made = old(before, found, *others)
        if before is None or before.plan is None or not before.plan.variants or made is None:
            return made
        return KnownService(made.service, before.plan, made.replicas, made.lost_s)

    return service


GATEWAY_MUTANTS: Final = (
    _mutant(
        "routes before clusters",
        "a version is routed to before its cluster is there and warm",
        (applying, "steps", _without(AwaitWarm)),
    ),
    _mutant(
        "told before taken",
        "a plan counts as applied before Envoy has taken its routes",
        (applying, "steps", _without(AwaitTaken)),
    ),
    _mutant(
        "no bridge",
        "clusters go before the routes that name them",
        (applying, "_bridge", _no_bridge),
    ),
    _mutant(
        "never settles",
        "a cluster changes again before Envoy has taken up its last change",
        (applying, "steps", _without(AwaitSettled)),
    ),
    _mutant("no retries", "a request is tried once", (routes, "_retries", _no_retries)),
    _mutant(
        "retries at the same",
        "a request is tried again at the replica that failed",
        (routes, "_retries", _same_host),
    ),
    _mutant(
        "broken connections",
        "a request whose replica dies is not tried again",
        (routes, "_retries", _no_broken_connections),
    ),
    _mutant(
        "draining counts",
        "a replica that drains counts as capacity",
        (KnownService, "capacity", _counts_draining),
    ),
    _mutant(
        "draining is not told",
        "Envoy does not hear that a replica drains",
        (clusters, "_endpoint", _unmarked),
    ),
    _mutant("one less", "a cluster lacks its last replica", (clusters, "_sorted", _one_less)),
    _mutant(
        "no second choice",
        "a canary without replicas is not answered by the stable version",
        (clusters, "endpoints", _no_spare),
    ),
    _mutant(
        "any weight", "a variant has its weight on any replica", (state, "_bounded", _any_weight)
    ),
    _mutant(
        "nobody has the stable one",
        "its share is given to nobody",
        (state, "_without_stable", _unshared),
    ),
    _mutant(
        "abroad first", "other regions are asked before ours", (clusters, "at_home", _all_at_home)
    ),
    _mutant(
        "old clusters",
        "a cluster stays as it was when its replicas change",
        (resources, "source", _same_source),
    ),
    _mutant(
        "forgets the living",
        "a replica whose session is lost is not asked any more, though it is well",
        (state, "_stays", _forgets),
    ),
    _mutant(
        "remembers the dead",
        "a replica that is gone is kept for ever",
        (state, "_stays", _keeps),
    ),
    _mutant(
        "first plan",
        "a gateway follows the first plan that it has known",
        (state, "_service", _first_plan),
    ),
)
