"""What speaks against a version: why it is taken back by itself. Pure.

One bad machine, or somebody who kills replicas, is not the version's fault. It is when nobody could
load it, when replicas crash with it, when too few have it in time, or when it answers worse than
the version that it shall replace.
"""

from __future__ import annotations

from typing import Final

from holdfast.serve import output_guards, settings
from holdfast.serve.autoscale import replicas as count_of
from holdfast.serve.moves import Look, weight_of
from holdfast.serve.records import WEIGHT_TOTAL, Counts, Load, RolloutPolicy, Stage, Watched
from holdfast.serve.verdict import Finding, judge

# A step that saw an error among too few requests is held longer, up to so many times `hold_s`.
VERDICT_HOLDS_MAX: Final = 6
# Replicas that could not load a version, on several machines, when no other one could.
LOAD_FAILURES_ENOUGH: Final = 2
# Replicas that crashed by their own fault while they loaded a version: the second is no accident.
LOADING_CRASHES_MAX: Final = 2
# Replicas that were killed, nobody knows why: so many within so short a time and the version is
# to blame. Somebody who kills machines one by one is slower.
DEATHS_MAX: Final = 5
DEATHS_WINDOW_S: Final = 5.0


def steps_of(policy: RolloutPolicy) -> list[int]:
    """The weights that a canary goes through, rising; all of it is the last one."""
    return [*sorted({step for step in policy.steps if 0 < step < WEIGHT_TOTAL}), WEIGHT_TOTAL]


def next_step(look: Look) -> int:
    """The weight that the next version gets next."""
    weight = weight_of(look.course, look.course.next)
    return next(step for step in steps_of(look.desired.service.policy) if step > weight)


def trouble_with(look: Look, version: int) -> str:
    """Why the version that is being rolled out must be taken back; empty: it need not be."""
    return (
        unloadable(look, version)
        or crashes(look, version)
        or _deaths(look, version)
        or _late(look, version)
        or _worse(look, version)
        or _unfit(look, version)
    )


def unloadable(look: Look, version: int) -> str:
    """It failed on all replicas, or on several machines and worked on none."""
    failures = look.fleet.failures(version, look.course.number)
    if not failures or look.fleet.ready(version):
        return ""
    nodes = {look.fleet.replicas[worker].node or str(worker) for worker in failures}
    others = len(look.fleet) - len(failures)
    if others and len(nodes) < LOAD_FAILURES_ENOUGH:
        return ""
    where = f"on {count_of(len(failures))}" if len(failures) > 1 else f"on replica {min(failures)}"
    return f"it could not be loaded {where}: {failures[min(failures)]}"


def crashes(look: Look, version: int) -> str:
    """Replicas ended by their own fault: several while they loaded it, or one that served it."""
    loading = look.course.stage is not Stage.SHIFTING
    guilty = Load.LOADING if loading else Load.READY
    crashed = [
        death
        for death in look.observed.deaths
        if death.own_fault and death.at_s >= look.since_s and death.versions.get(version) is guilty
    ]
    if len(crashed) < (LOADING_CRASHES_MAX if loading else 1):
        return ""
    what = "loaded it" if loading else "served it"
    return f"replica {crashed[-1].worker} crashed while it {what}: {_end_of(crashed[-1].reason)}"


def _end_of(story: str) -> str:
    """A crash's story is the end of a log; its last line says how the process ended."""
    lines = [line.strip() for line in story.splitlines() if line.strip()]
    return lines[-1] if lines else "nobody knows how"


def _deaths(look: Look, version: int) -> str:
    """Killed, and nobody knows by whom: too many in too short a time, and none is left."""
    loading = look.course.stage is not Stage.SHIFTING
    if look.fleet.ready(version):
        return ""
    guilty = Load.LOADING if loading else Load.READY
    earliest_s = max(look.since_s, look.now_s - DEATHS_WINDOW_S)
    count = sum(
        1
        for death in look.observed.deaths
        if death.at_s >= earliest_s and death.versions.get(version) is guilty
    )
    if count < max(DEATHS_MAX, look.course.replicas):
        return ""
    what = "loaded it" if loading else "served it"
    return f"{count_of(count)} died within {DEATHS_WINDOW_S:g} s while they {what}"


def _late(look: Look, version: int) -> str:
    """Too few replicas had it in time. Without replicas, or with young ones, there is more time.
    One that will only start by our clock has another one, and counts as old."""
    if not look.fleet.replicas:
        return ""
    course, policy = look.course, look.desired.service.policy
    shifting = course.stage is Stage.SHIFTING
    began_s = look.since_s + (policy.hold_s if shifting else 0.0)
    oldest_s = min(replica.started_s for replica in look.fleet.replicas.values())
    if oldest_s <= look.now_s:
        began_s = max(began_s, oldest_s)
    if look.now_s < began_s + policy.ready_s:
        return ""
    needed = 1 if course.stable is None else next_step(look)
    if look.allowed(version) >= needed:
        return ""
    failures = look.fleet.failures(version, look.course.number)
    why = f"; replica {min(failures)} says: {failures[min(failures)]}" if failures else ""
    have, all_ = look.fleet.ready(version), count_of(len(look.fleet))
    more = settings.command(
        look.desired.service.name, settings.READY, settings.seconds(2 * policy.ready_s)
    )
    return (
        f"after {policy.ready_s:g} s only {have} of {all_} had loaded it{why}. To wait longer: "
        f"{more}"
    )


def _worse(look: Look, version: int) -> str:
    course, window = look.course, look.observed.window
    if course.stage is not Stage.SHIFTING or window is None or window.arms != course.arms:
        return ""
    if course.stable is None or look.desired.service.pinned is not None:
        return ""  # there is nothing to compare with, or users know better
    policy = look.desired.service.policy
    old = window.counts.get(course.stable, Counts())
    new = window.counts.get(version, Counts())
    patient = look.now_s < _patience_end_s(look)
    verdict = judge(policy, old, new, patient=patient)
    if verdict.finding is not Finding.WORSE:
        return ""
    if not verdict.allowing:
        return verdict.reason
    option, value = verdict.allowing
    change = settings.command(look.desired.service.name, option, value)
    return f"{verdict.reason}. To allow it: {change}"


def _unfit(look: Look, version: int) -> str:
    """Its outputs are not what they must be."""
    course, service = look.course, look.desired.service
    if course.stage is not Stage.SHIFTING or course.stable is None or service.pinned is not None:
        return ""
    watched = look.observed.watched
    if version not in watched:
        return ""
    old = watched.get(course.stable, Watched())
    patient = look.observed.window is None or look.now_s < _patience_end_s(look)
    return output_guards.broken(service, old, watched[version], patient=patient)


def _patience_end_s(look: Look) -> float:
    """After this, few requests have to do: nobody waits for ever."""
    window, policy = look.observed.window, look.desired.service.policy
    assert window is not None
    return max(look.since_s, window.since_s) + VERDICT_HOLDS_MAX * policy.hold_s


def untried(look: Look, version: int) -> bool:
    """Whether requests come, none of them to this version, and no gateway is in sight: those that
    send them are cut off from the coordination plane, and have not heard of this step. (Without any
    requests a step is over when its time is.)"""
    window, stable = look.observed.window, look.course.stable
    if window is None or stable is None or look.observed.gateways:
        return False
    old = window.counts.get(stable, Counts())
    return old.requests > 0 and window.counts.get(version, Counts()).requests == 0


def held_long_enough(look: Look, version: int) -> bool:
    """Whether the present step was watched for as long as it has to be.

    What one conductor saw is not known to the next one, which watches again from its beginning. An
    error among too few requests is a reason to look longer.
    """
    course, window, policy = look.course, look.observed.window, look.desired.service.policy
    if window is None or window.arms != course.arms:
        return False
    seen_s = window.until_s - max(look.since_s, window.since_s)
    if seen_s < policy.hold_s:
        return False
    if untried(look, version):
        return False
    new = window.counts.get(version, Counts())
    few_errors = new.errors and new.requests < policy.requests_min
    if few_errors or _hardly_compared(look, version):
        return seen_s >= VERDICT_HOLDS_MAX * policy.hold_s
    return True


def _hardly_compared(look: Look, version: int) -> bool:
    """Whether requests come, and its outputs are not known well enough."""
    window, stable = look.observed.window, look.course.stable
    if window is None or stable is None or not window.counts.get(stable, Counts()).requests:
        return False
    seen = look.observed.watched.get(version, Watched())
    return output_guards.suspicious(look.desired.service, seen)
