"""`advance`: what to do next for a service, with a reason for people. Pure: no I/O, clock, chance.

    starting --(a replica is ready)--> steady --(the target moved)--> loading --> shifting
                                         ^  ^                             |           |
                                         |  +------(taken back)-----------+-----------+
                                         +---------(promoted)-------------------------+

The course is all that is remembered, so a conductor may die after any write. Every call looks at
levels: what users want now, what replicas and gateways say now. A user's pin goes before the
target, a split before both, at any moment.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from holdfast.serve import moves, splits
from holdfast.serve.autoscale import replicas as count_of
from holdfast.serve.autoscale import wanted as wanted_replicas
from holdfast.serve.conduct import Decision, Desired, Fleet, Observed, ScaleJob, SetCourse
from holdfast.serve.moves import Look, Move, weight_of
from holdfast.serve.records import WEIGHT_TOTAL, Course, Stage
from holdfast.serve.trouble import held_long_enough, next_step, trouble_with
from holdfast.wire.limits import HELD_VERSIONS_MAX

# A reason in a course: every replica and gateway reads it.
COURSE_REASON_CHARACTERS_MAX: Final = 400


def advance(desired: Desired, observed: Observed, now_s: float) -> list[Decision]:
    """What to do now. Carried out twice, or by another conductor, it has the same result: each
    course says which one it takes the place of."""
    service = desired.service
    before = observed.course or _nothing(desired, now_s)
    course, told = before, ""
    if observed.course is None or service.asked != before.asked:
        failed = before.failed if service.wishes == before.wishes else {}
        course = replace(before, asked=service.asked, wishes=service.wishes, failed=failed)
        told = "its user asked for something; nothing else changes"
    look = Look(desired, observed, now_s, course, Fleet(observed.replicas))
    shares = splits.usable_split(look)
    move = splits.split(look, shares) if shares else _move(look)
    after, reason = move.course, move.reason
    wanted = {*service.split, service.pinned or desired.version}
    if after.failed.keys() - wanted:
        failed = {version: why for version, why in after.failed.items() if version in wanted}
        after, reason = replace(after, failed=failed), reason or "what had failed is not wanted now"
    after = moves.kept(before, after, tuple(shares), desired.unusable, now_s)
    without = moves.dropped(after, look)
    if without is not after:
        gone = ", ".join(str(version) for version in after.hold if version not in without.hold)
        after, reason = without, reason or f"nothing is sent to version {gone} any more"
    after, reason = _scaled(look, after, reason)
    decisions = []
    changed = after is not before and replace(after, reason=before.reason) != before
    if observed.course is None or changed:
        reason = reason or told or "what it needs has changed"
        kept_reason = reason[:COURSE_REASON_CHARACTERS_MAX]
        after = replace(after, number=before.number + 1, reason=kept_reason)
        moves.validate(after)
        decisions.append(Decision(SetCourse(service.name, before.number, after), reason))
    wrong = observed.job_replicas is not None and observed.job_replicas != after.replicas
    # What was to go before a rollout began, and is still there, goes when it is over.
    if wrong and (after.replicas > (observed.job_replicas or 0) or may_take_away(after)):
        text = f"it shall have {count_of(after.replicas)}, and its job {observed.job_replicas}"
        decisions.append(Decision(ScaleJob(service.name, after.replicas), text))
    return decisions


def may_take_away(course: Course) -> bool:
    """Whether replicas may go: a rollout never ends with less than it began with."""
    return course.stage not in (Stage.LOADING, Stage.SHIFTING)


def _nothing(desired: Desired, now_s: float) -> Course:
    """Before the first course."""
    service = desired.service
    first = service.replicas_min if service.replicas_wanted is None else service.replicas_wanted
    return Course(0, Stage.STARTING, since_s=now_s, replicas=first)


def _scaled(look: Look, course: Course, reason: str) -> tuple[Course, str]:
    service, samples = look.desired.service, look.observed.samples
    # Nor while a gateway may send to what only some replicas have.
    may_shrink = (
        may_take_away(course)
        and not course.leaving
        and course.arms == look.course.arms
        and moves.applied_by_all(look.course, look.observed.gateways, service.name)
    )
    count, why = wanted_replicas(
        service, course.replicas, samples, look.now_s, may_shrink=may_shrink
    )
    if count == course.replicas:
        return course, reason
    text = f"{count_of(count)} instead of {course.replicas}: {why}"
    return replace(course, replicas=count), f"{reason}; {text}" if reason else text


# --- one version for all -------------------------------------------------------------------------


def goal_of(look: Look) -> tuple[int | None, str]:
    """The version that should serve everything; None: there is none, and why."""
    desired = look.desired
    version = desired.version if desired.service.pinned is None else desired.service.pinned
    if version is None:
        return None, desired.trouble or f"{desired.service.target} names no version"
    if version in desired.unusable:
        return None, f"version {version} cannot be served: {desired.unusable[version]}"
    if version in look.course.failed:
        return None, f"version {version} has failed: {look.course.failed[version]}"
    return version, ""


def _move(look: Look) -> Move:
    course = look.course
    goal, why_not = goal_of(look)
    if course.stable is None:
        return _start(look, goal, why_not)
    if goal is None or goal == course.stable:
        return _settle(look, goal, why_not)
    under_way = course.next == goal and course.stage in (Stage.LOADING, Stage.SHIFTING)
    if under_way:
        trouble = trouble_with(look, goal)
        if trouble:
            after = moves.given_up(course, goal, trouble, look.now_s)
            return Move(
                after,
                f"version {goal} is taken back: {trouble}. Version {course.stable} serves "
                "everything",
            )
    if look.desired.service.pinned is not None:
        return _hurry(look, goal)
    if not under_way:
        return _open(look, goal)
    return _load(look, goal) if course.stage is Stage.LOADING else _shift(look, goal)


def _start(look: Look, goal: int | None, why_not: str) -> Move:
    """Nothing was ever served: the first replica that is ready begins."""
    course = replace(look.course, stage=Stage.STARTING, arms=())
    if goal is None:
        if course.next is None:
            return Move(course, why_not if look.observed.course is None else "")
        return Move(replace(course, next=None, since_s=look.now_s), why_not)
    if course.next != goal:
        text = f"replicas load version {goal}, the first one"
        return Move(replace(course, next=goal, since_s=look.now_s), text)
    trouble = trouble_with(look, goal)
    if trouble:
        text = f"version {goal} has failed: {trouble}. There is no other one to serve"
        return Move(moves.given_up(course, goal, trouble, look.now_s), text)
    if look.fleet.ready(goal):
        return Move(
            moves.promoted(course, goal, look.now_s), f"version {goal} is ready, and serves"
        )
    return Move(course)


def _settle(look: Look, goal: int | None, why_not: str) -> Move:
    """The stable version shall serve everything, and does so at once."""
    course = look.course
    if course.stage is Stage.STEADY and weight_of(course, course.stable) == WEIGHT_TOTAL:
        return Move(course)
    text = why_not if goal is None else f"version {goal} is wanted"
    return Move(
        moves.returned(course, look.now_s), f"{text}: version {course.stable} serves everything"
    )


def _open(look: Look, goal: int) -> Move:
    """A rollout begins, if replicas have room for one more version."""
    course = look.course
    if goal not in course.hold and len(course.hold) >= HELD_VERSIONS_MAX:
        return _settle(look, goal=None, why_not=f"replicas hold {len(course.hold)} versions")
    target = look.desired.service.target
    named = f"{target} names" if target != str(goal) else "its user wants"
    text = f"{named} version {goal}: replicas load it beside version {course.stable}"
    return Move(moves.begun(course, goal, look.now_s), text)


def _load(look: Look, goal: int) -> Move:
    step = next_step(look)
    if look.allowed(goal) < step:
        return Move(look.course)
    have = f"{count_of(look.fleet.ready(goal))} of {len(look.fleet)} have it"
    return _step(look, goal, step, f"version {goal} is loaded and warm ({have})")


def _shift(look: Look, goal: int) -> Move:
    course = look.course
    weight, allowed = weight_of(course, goal), look.allowed(goal)
    if allowed < weight:
        ready = look.fleet.ready(goal)
        text = (
            f"{f'only {count_of(ready)}' if ready else 'no replica'} can serve version {goal} now"
        )
        what = f"it has {allowed / 100:g} % of the requests" if allowed else "it gets no requests"
        return Move(moves.shifted(course, allowed, look.now_s), f"{text}: {what}")
    step = next_step(look)
    if allowed < step or not held_long_enough(look, goal):
        return Move(course)
    return _step(look, goal, step, f"version {goal} did well at {weight / 100:g} %")


def _step(look: Look, goal: int, step: int, why: str) -> Move:
    """The next weight, or all of it."""
    course = look.course
    if step < WEIGHT_TOTAL:
        text = f"{why}: it has {step / 100:g} % of the requests"
        return Move(moves.shifted(course, step, look.now_s), text)
    text = f"{why}: it serves everything, and version {course.stable} stays warm"
    return Move(moves.promoted(course, goal, look.now_s), text)


def _hurry(look: Look, goal: int) -> Move:
    """Users pinned it: it has at once all that its replicas can carry."""
    course, allowed = look.course, look.allowed(goal)
    asked = f"its user pinned version {goal}"
    if allowed >= WEIGHT_TOTAL:
        text = f"{asked}: it serves everything, and version {course.stable} stays warm"
        return Move(moves.promoted(course, goal, look.now_s), text)
    if course.next != goal or course.stage not in (Stage.LOADING, Stage.SHIFTING):
        course = moves.begun(course, goal, look.now_s)
    if weight_of(course, goal) != allowed:
        course = moves.shifted(course, allowed, look.now_s)
    if course == look.course:
        return Move(course)
    have = f"{count_of(look.fleet.ready(goal))} of {len(look.fleet)}"
    return Move(course, f"{asked}, and {have} can serve it: {allowed / 100:g} % of the requests")
