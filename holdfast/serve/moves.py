"""The moves of a course: what each does to it, and what is held afterwards. Pure.

A move takes a course and gives another with the same number; `rollout.advance` numbers what it
writes. Whatever a move is, `kept` says what replicas hold after it: what is needed, and for a while
what is not needed any more, since a gateway may still send to it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from holdfast.control.decide.spans import lasts
from holdfast.serve.conduct import CANARY, STABLE, Desired, Fleet, Observed
from holdfast.serve.records import WEIGHT_TOTAL, Arm, Course, Gateway, Leaving, Stage
from holdfast.wire.errors import BugError

# A version without requests is unloaded after its service's time-out and this: by then nobody
# waits for an answer of it, however often it was tried again.
UNLOAD_GRACE_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Look:
    """All that a decision looks at. `course` may differ from the observed one: what users asked
    for is noted in it."""

    desired: Desired
    observed: Observed
    now_s: float
    course: Course
    fleet: Fleet

    @property
    def since_s(self) -> float:
        """Since when the stage and the arms are these, by the clock of whoever decides. The course
        itself is dated by the clock of whoever wrote it, which may be an hour off."""
        seen_s = self.observed.since_s
        return self.course.since_s if seen_s is None else seen_s

    @property
    def beside(self) -> tuple[int | None, ...]:
        """What a version's capacity is compared with: all that is served now."""
        return (self.course.stable, *(arm.version for arm in self.course.arms))

    def allowed(self, version: int) -> int:
        """The most weight that this version may have now."""
        return self.fleet.allowed(version, self.beside)


class Move(NamedTuple):
    """A course as it shall be, and why. An empty reason: it stays as it is."""

    course: Course
    reason: str = ""


def weight_of(course: Course, version: int | None) -> int:
    """The share of the requests that a version has."""
    return sum(arm.weight for arm in course.arms if arm.version == version)


def arms_of(stable: int, canary: int | None = None, weight: int = 0) -> tuple[Arm, ...]:
    """The stable version, and a canary if it has any weight."""
    if canary is None or weight <= 0:
        return (Arm(STABLE, stable, WEIGHT_TOTAL),)
    return (Arm(STABLE, stable, WEIGHT_TOTAL - weight), Arm(CANARY, canary, weight))


def begun(course: Course, version: int, now_s: float) -> Course:
    """Replicas shall load it; nothing is sent to it."""
    assert course.stable is not None
    return replace(
        course,
        stage=Stage.LOADING,
        next=version,
        arms=arms_of(course.stable),
        since_s=now_s,
    )


def shifted(course: Course, weight: int, now_s: float) -> Course:
    """The next version has this weight; with none it is still being loaded."""
    assert course.stable is not None
    return replace(
        course,
        stage=Stage.SHIFTING if weight > 0 else Stage.LOADING,
        arms=arms_of(course.stable, course.next, weight),
        since_s=now_s,
    )


def promoted(course: Course, version: int, now_s: float) -> Course:
    """It serves everything; what was stable before stays warm as `previous`."""
    previous = course.stable if course.stable != version else course.previous
    return replace(
        course,
        stage=Stage.STEADY,
        stable=version,
        previous=previous,
        next=None,
        arms=arms_of(version),
        since_s=now_s,
    )


def returned(course: Course, now_s: float) -> Course:
    """The stable version serves everything again."""
    assert course.stable is not None
    return replace(
        course, stage=Stage.STEADY, next=None, arms=arms_of(course.stable), since_s=now_s
    )


def given_up(course: Course, version: int, reason: str, now_s: float) -> Course:
    """It has failed, and is not tried again until users ask anew."""
    failed = {**course.failed, version: reason}
    if course.stable is None:
        return replace(course, next=None, failed=failed, since_s=now_s)
    return replace(returned(course, now_s), failed=failed)


# --- what is held --------------------------------------------------------------------------------


def kept(
    before: Course,
    after: Course,
    wanted: Collection[int],
    unusable: Mapping[int, str],
    now_s: float,
) -> Course:
    """`after`, with `hold` and `leaving`. `wanted`: further versions that shall be loaded."""
    previous = after.previous
    if previous is not None and (previous in unusable or previous == after.stable):
        after, previous = replace(after, previous=None), None
    ranked = sorted(after.arms, key=lambda arm: -arm.weight)
    order = [after.stable, *(arm.version for arm in ranked), *wanted, after.next, previous]
    needed = tuple(dict.fromkeys(version for version in order if version is not None))
    first = Leaving(before.number + 1, now_s)
    leaving = {
        version: before.leaving.get(version, first)
        for version in before.hold
        if version not in needed
    }
    hold = (*needed, *leaving)
    if hold == after.hold and leaving == after.leaving:
        return after
    return replace(after, hold=hold, leaving=leaving)


def dropped(course: Course, look: Look) -> Course:
    """Without the versions that no living gateway sends to, and that nobody waits for: they left
    so long ago, or no replica could answer for them anyway."""
    if not course.leaving:
        return course
    service, gateways = look.desired.service, look.observed.gateways.values()
    applied = [gateway.applied.get(service.name, 0) for gateway in gateways]
    # As long as somebody may wait for an answer of it.
    grace_s = service.limits.timeout_s + UNLOAD_GRACE_S
    leaving = {
        version: each
        for version, each in course.leaving.items()
        if any(number < each.course for number in applied)
        or (lasts(each.since_s, grace_s, look.now_s) and look.fleet.ready(version))
    }
    gone = course.leaving.keys() - leaving.keys()
    hold = tuple(version for version in course.hold if version not in gone)
    return replace(course, hold=hold, leaving=leaving) if gone else course


def applied_by_all(course: Course, gateways: Mapping[str, Gateway], name: str) -> bool:
    """Whether every living gateway sends requests as this course says."""
    return all(gateway.applied.get(name, 0) >= course.number for gateway in gateways.values())


# --- what must always be true --------------------------------------------------------------------


def validate(course: Course) -> None:
    """Stays on in production: a course that breaks this is not written."""
    versions = [arm.version for arm in course.arms]
    wrong = ""
    if course.arms and sum(arm.weight for arm in course.arms) != WEIGHT_TOTAL:
        wrong = "the weights do not add up"
    elif any(arm.weight <= 0 for arm in course.arms):
        wrong = "an arm has no weight"
    elif len(set(versions)) != len(versions):
        wrong = "a version has two arms"
    elif not set(versions) <= set(course.hold):
        wrong = "requests go to a version that is not held"
    elif set(versions) & course.failed.keys() - {course.stable}:
        wrong = "requests go to a version that has failed"
    elif course.leaving.keys() & {*versions, course.stable, course.next}:
        wrong = "a version that is needed leaves"
    elif course.stable is None and course.arms:
        wrong = "requests go somewhere, and nothing is stable"
    if wrong:
        raise BugError(f"a course is not sound: {wrong}", why=repr(course))
