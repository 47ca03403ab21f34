"""Deliberate breakages of rollouts. Each must be found, or the serving world is blind.

The code's own check of a plan (`advance.validate`) is off meanwhile: what finds a mutant is the
world's truth. Those of the gateway are in `gateway_breakages`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from holdfast.serve.controller.memory import ServiceHistory
from holdfast.serve.records import WEIGHT_TOTAL, Load
from holdfast.serve.rollout import advance, facts, verdict
from holdfast.serve.rollout.facts import Fleet
from holdfast.serve.rollout.verdict import Finding, VersionVerdict
from simulation.breaking import Mutant, Patch
from simulation.serving.gateway_breakages import GATEWAY_MUTANTS
from simulation.serving.world import World


def _mutant(name: str, what: str, *patches: Patch) -> Mutant:
    return Mutant(name, what, patches)


def _never(_: Any) -> Any:
    return lambda *arguments, **named: ""


def _always(_: Any) -> Any:
    return lambda *arguments, **named: True


def _not_fenced(_: Any) -> Any:
    return lambda self, term, command: False


def _any_weight(_: Any) -> Any:
    return lambda self, version, beside: WEIGHT_TOTAL if self.ready(version) else 0


def _loading_is_ready(_: Any) -> Any:
    return lambda self, version: sum(
        1 for state in self.states(version) if state is not Load.FAILED
    )


def _drops_at_once(old: Any) -> Any:
    blind = _forgets_gateways(old)
    return lambda plan, context: blind(plan, replace(context, now_s=1e12))


def _forgets_gateways(old: Any) -> Any:
    return lambda plan, context: old(
        plan, replace(context, observed=replace(context.observed, gateways={}))
    )


def _holds_only_needed(old: Any) -> Any:
    """What is not needed any more is gone at once."""

    def kept(*arguments: Any) -> Any:
        after = old(*arguments)
        hold = tuple(version for version in after.hold if version not in after.leaving)
        return replace(after, hold=hold, leaving={})

    return kept


def _cold(old: Any) -> Any:
    """The version before is not kept."""
    return lambda plan, version, now_s: replace(old(plan, version, now_s), previous=None)


def _tries_for_ever(old: Any) -> Any:
    """That it failed is forgotten."""
    return lambda plan, version, reason, now_s: replace(
        old(plan, version, reason, now_s), failed=plan.failed
    )


def _ignores_failures(old: Any) -> Any:
    return lambda context: old(replace(context, plan=replace(context.plan, failed={})))


def _ignores_retirement(old: Any) -> Any:
    return lambda context: old(replace(context, desired=replace(context.desired, unusable={})))


def _ignores_pins(old: Any) -> Any:
    def goal(context: Any) -> Any:
        service = replace(context.desired.service, pinned=None)
        return old(replace(context, desired=replace(context.desired, service=service)))

    return goal


def _all_is_fine(_: Any) -> Any:
    return lambda *arguments, **named: VersionVerdict(Finding.FINE, "")


def _no_split(_: Any) -> Any:
    return lambda context: {}


def _shrinks(old: Any) -> Any:
    """Whatever goes on, one replica less is enough now and then."""

    def wanted(service: Any, current: int, *arguments: Any, **named: Any) -> Any:
        count, why = old(service, current, *arguments, **named)
        if not named["may_shrink"] and count == current > service.replicas_min:
            return count - 1, "it is calm"
        return count, why

    return wanted


def _counts_before_applied(old: Any) -> Any:
    return lambda self, plan, *, applied: old(self, plan, applied=True)


def _keeps_old_counts(_: Any) -> Any:
    """Other variants do not begin a new window."""

    def see(self: Any, plan: Any, *, applied: bool) -> None:
        self._variants = plan.variants if plan is not None else ()
        self._applied = applied
        if self._window is not None:
            self._window = replace(self._window, variants=self._variants, since_s=0.0, counts={})

    return see


def _asks_are_lost(old: Any) -> Any:
    """What users asked is never noted."""

    def advance(desired: Any, observed: Any, now_s: float) -> Any:
        if observed.plan is None:
            return old(desired, observed, now_s)
        revision, version_revision = observed.plan.revision, observed.plan.version_revision
        service = replace(desired.service, revision=revision, version_revision=version_revision)
        return old(replace(desired, service=service), observed, now_s)

    return advance


def _by_other_clocks(old: Any) -> Any:
    def see(self: Any, failures: Any, now_s: float) -> None:
        old(self, failures, now_s)
        told_s = {failure.worker: failure.at_s for failure in failures}
        for at, death in enumerate(self._deaths):
            self._deaths[at] = replace(death, at_s=told_s.get(death.worker, death.at_s))

    return see


def _dated_by_its_writer(_: Any) -> Any:
    return property(lambda context: context.plan.since_s)


def _not_noticed(_: Any) -> Any:
    return lambda self, now_s: None


def _by_the_clock(_: Any) -> Any:
    return lambda since_s, span_s, now_s: now_s - since_s < span_s


MUTANTS: Final = (
    _mutant(
        "no fence",
        "a deposed controller writes, and upon a plan that it has not seen",
        (World, "fenced", _not_fenced),
    ),
    _mutant(
        "any weight",
        "one ready replica is enough for any weight",
        (Fleet, "allowed", _any_weight),
    ),
    _mutant(
        "loading is ready",
        "a replica that loads a version counts as ready for it",
        (Fleet, "ready", _loading_is_ready),
    ),
    _mutant(
        "unload at once",
        "a version is dropped as soon as nobody needs it, without asking gateways",
        (advance, "dropped", _drops_at_once),
    ),
    _mutant(
        "gateways forgotten",
        "a version is dropped after the grace, whatever gateways have applied",
        (advance, "dropped", _forgets_gateways),
    ),
    _mutant(
        "only what is needed",
        "replicas hold nothing that is not needed",
        (advance, "kept", _holds_only_needed),
    ),
    _mutant(
        "nothing stays warm",
        "the version before is not held after a promotion",
        (advance, "promoted", _cold),
    ),
    _mutant(
        "tried for ever",
        "a version that failed is begun again and again",
        (advance, "given_up", _tries_for_ever),
    ),
    _mutant(
        "failures ignored",
        "a version that failed is rolled out all the same",
        (advance, "goal_of", _ignores_failures),
    ),
    _mutant(
        "retirement ignored",
        "a retired version is rolled out",
        (advance, "goal_of", _ignores_retirement),
    ),
    _mutant("pins ignored", "a user's pin does nothing", (advance, "goal_of", _ignores_pins)),
    _mutant("splits ignored", "a user's split does nothing", (advance, "usable_split", _no_split)),
    _mutant(
        "all is fine", "no counts ever speak against a version", (verdict, "judge", _all_is_fine)
    ),
    _mutant(
        "guards ignored",
        "what a version answers is never looked at",
        (verdict, "_unfit", _never),
    ),
    _mutant(
        "no patience",
        "a step is over as soon as it has begun",
        (advance, "held_long_enough", _always),
    ),
    _mutant("crashes ignored", "crashes are nobody's fault", (verdict, "crashes", _never)),
    _mutant(
        "failed loads ignored",
        "that no replica can load a version is not noticed, nor that it takes too long",
        (verdict, "unloadable", _never),
        (verdict, "_late", _never),
    ),
    _mutant(
        "counted too early",
        "a step is judged before gateways send by it",
        (ServiceHistory, "see_plan", _counts_before_applied),
    ),
    _mutant(
        "old counts",
        "what was counted under other variants lets a step pass",
        (ServiceHistory, "see_plan", _keeps_old_counts),
    ),
    _mutant(
        "shrinks in a rollout",
        "replicas are taken away while a version is rolled out",
        (advance, "wanted_replicas", _shrinks),
    ),
    _mutant("deaf", "what users asked is not noted", (advance, "advance", _asks_are_lost)),
    _mutant(
        "other clocks",
        "a crash is dated by the clock of the machine that tells of it",
        (ServiceHistory, "see_failures", _by_other_clocks),
    ),
    _mutant(
        "plans' clocks",
        "a plan's times are of the clock that wrote them, though clocks differ and are set back",
        (facts.RolloutContext, "since_s", _dated_by_its_writer),
        (ServiceHistory, "_see_time", _not_noticed),
        (advance, "lasts", _by_the_clock),
    ),
    *GATEWAY_MUTANTS,
)
