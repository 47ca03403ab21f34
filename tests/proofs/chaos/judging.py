"""What must be true of what clients were told. Pure: histories in, `Violation` out.

What is true of jobs, terms, room and commits is judged by `tests.proofs.control.checks`, of samples
and bits by `tests.proofs.training.judging`.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Final

from tests.proofs.chaos.histories import (
    UNANSWERED,
    AppliedSeen,
    Call,
    Lost,
    Plane,
    PlanSeen,
    Probe,
    Strike,
    Write,
)
from tests.proofs.control.checks import Violation

# A replica that has answered through the gateway within this time is one that the gateway knows.
KNOWN_S: Final = 30.0
# Between two probes: if they were further apart nobody knows how the replica was meanwhile.
BLIND_S: Final = 1.5
# How much later than the gateway we may see a plan.
LATE_S: Final = 5.0
# A gateway that has answered again after a strike: so long some of its requests may still fail.
SETTLE_S: Final = 5.0


# --- requests -------------------------------------------------------------------------------------


def every_request_is_answered(
    calls: Sequence[Call],
    probes: Iterable[Probe],
    strikes: Iterable[Strike] = (),
    lost: Sequence[Lost] = (),
    plans: Sequence[PlanSeen] = (),
) -> list[Call]:
    """No try fails at a gateway while a replica that it knows is well, seen from its host, from
    before the try to its end. Those that failed although nothing was promised:

    - the gateway was struck itself: until it has answered again, and for a while afterwards; also
      on a connection that is older than the strike. The client asks the other one, which is judged
      by the same rule;
    - there was no such replica. (A connection that is refused or broken has no such excuse.)
    - the plan changed while the plane had lost sight of the gateway: versions that it still asks
      for may be gone."""
    struck = _struck(calls, strikes)
    answers: dict[tuple[str, int], list[float]] = defaultdict(list)
    for call in sorted(calls, key=lambda call: call.ended_s):
        if not call.wrong and call.replica.isdecimal():
            answers[call.gateway, int(call.replica)].append(call.ended_s)
    looks = _by_worker(probes)
    excused = []
    for call in calls:
        if not call.wrong:
            continue
        if call.wrong.startswith("bytes"):
            raise Violation("8", f"a request was answered wrong: {call.wrong}")
        if not _excused(call, struck, lost, plans):
            _judge_failed(call, answers, looks)
        excused.append(call)
    return excused


def _struck(calls: Iterable[Call], strikes: Iterable[Strike]) -> list[Strike]:
    """The strikes with the time after which nothing more may fail because of them."""
    found = []
    answered = sorted((call.sent_s, call.ended_s, call.gateway) for call in calls if not call.wrong)
    for one in strikes:
        times = (
            end for sent, end, gateway in answered if gateway == one.gateway and sent > one.to_s
        )
        found.append(Strike(one.gateway, one.from_s, next(times, math.inf) + SETTLE_S))
    return found


def _excused(
    call: Call, struck: Sequence[Strike], lost: Sequence[Lost], plans: Sequence[PlanSeen]
) -> bool:
    """Whether its gateway was struck, or follows a plan that nobody keeps for it."""
    unanswered = call.wrong.startswith(UNANSWERED)
    if any(
        one.gateway == call.gateway
        and one.from_s <= call.ended_s
        and (call.sent_s <= one.to_s or (unanswered and call.opened_s < one.to_s))
        for one in struck
    ):
        return True
    if unanswered:
        return False
    return any(
        one.gateway == call.gateway
        and one.from_s <= call.ended_s
        and call.sent_s <= one.to_s + SETTLE_S
        and any(one.from_s - LATE_S <= plan.at_s <= call.ended_s for plan in plans)
        for one in lost
    )


def _judge_failed(
    call: Call,
    answers: Mapping[tuple[str, int], Sequence[float]],
    looks: Mapping[tuple[str, int], _Looks],
) -> None:
    """It failed at a gateway that nobody had struck."""
    took = f"sent {call.sent_s:.3f}, failed after {call.ended_s - call.sent_s:.1f} s"
    what = f"a request to {call.gateway or 'the gateway'} ({took}) had no answer: {call.wrong}"
    if call.wrong.startswith(UNANSWERED) and "timed out" not in call.wrong:
        raise Violation("8", f"{what}; nobody had struck the gateway")
    for (gateway, worker), times in answers.items():
        known = bisect_right(times, call.sent_s)
        if gateway != call.gateway or not known or times[known - 1] < call.sent_s - KNOWN_S:
            continue
        seen = looks.get((gateway, worker))
        if seen is not None and seen.well(times[known - 1], call.ended_s):
            raise Violation("8", f"{what}; replica {worker} was well all the time")


def unanswered(calls: Iterable[Call]) -> list[Call]:
    """The last try of each request that nobody has answered: what people call a failed one."""
    last: dict[int, Call] = {}
    for call in calls:
        if call.number not in last or not call.wrong:
            last[call.number] = call
    return [call for call in last.values() if call.wrong]


class _Looks:
    """The probes of one replica, in order."""

    def __init__(self, probes: Sequence[Probe]) -> None:
        self._probes = probes
        self._began_s = [probe.began_s for probe in probes]

    def well(self, from_s: float, to_s: float) -> bool:
        """Whether it was so at every look from then to then, and was looked at often enough."""
        first = max(0, bisect_left(self._began_s, from_s) - 1)
        between = self._probes[first : bisect_right(self._began_s, to_s) + 1]
        if len(between) < 2 or not all(look.well for look in between):
            return False
        if between[0].began_s > from_s + BLIND_S or between[-1].ended_s < to_s:
            return False
        return all(other.began_s - one.began_s <= BLIND_S for one, other in pairwise(between))


def _by_worker(probes: Iterable[Probe]) -> dict[tuple[str, int], _Looks]:
    found: dict[tuple[str, int], list[Probe]] = defaultdict(list)
    for probe in sorted(probes, key=lambda probe: probe.began_s):
        found[probe.gateway, probe.worker].append(probe)
    return {key: _Looks(those) for key, those in found.items()}


def answers_are_of_a_version_that_is_served(
    calls: Iterable[Call], plans: Sequence[PlanSeen], applied: Sequence[AppliedSeen]
) -> None:
    """Whoever answers is in a plan that its gateway may have had: not older than the one that it
    had taken before the request, and not newer than what was decided when the answer came."""
    seen = sorted(plans, key=lambda plan: plan.number)
    taken: dict[str, list[AppliedSeen]] = defaultdict(list)
    for one in sorted(applied, key=lambda one: one.at_s):
        taken[one.gateway].append(one)
    times = {name: [one.at_s for one in those] for name, those in taken.items()}
    highest = {
        name: list(accumulate((one.number for one in those), max)) for name, those in taken.items()
    }
    decided_s = sorted(plan.at_s for plan in seen)
    known: dict[tuple[int, int], set[int]] = {}
    for call in calls:
        if call.wrong:
            continue
        before = bisect_right(times.get(call.gateway, []), call.sent_s)
        floor = highest[call.gateway][before - 1] if before else 0
        until_s = call.ended_s + LATE_S
        key = (floor, bisect_right(decided_s, until_s))
        if key not in known:
            may = [one for one in seen if one.number >= floor and one.at_s <= until_s]
            known[key] = {version for plan in may for version in plan.versions}
        if call.version not in known[key]:
            allowed = f"plan {floor} was taken before, and {sorted(known[key])} may answer"
            raise Violation(
                "8", f"version {call.version} answered at {call.ended_s:.3f}: {allowed}"
            )


# --- writes ---------------------------------------------------------------------------------------


def every_acknowledged_write_is_there(writes: Sequence[Write], plane: Plane) -> int:
    """What was acknowledged is there, where it was said to be; nothing is there twice, and nothing
    that nobody wrote. How many were acknowledged."""
    tried = {write.value for write in writes}
    appended = [one for one in writes if one.register is None and one.place is not None]
    for one in appended:
        found = plane.sequence.get(one.place or 0)
        if found != one.value:
            raise Violation("9", f"{one.value} was acknowledged at {one.place}; there is {found}")
    counts = Counter(plane.sequence.values())
    for value, count in counts.items():
        if count > 1 or value not in tried:
            raise Violation("9", f"{value!r} is there {count} times, and was tried once at most")
    acknowledged = len(appended)
    for register, (version, value) in plane.registers.items():
        own = [one for one in writes if one.register == register]
        acknowledged += _judge_register(register, own, version, value)
    return acknowledged


def _judge_register(register: int, own: Sequence[Write], version: int, value: str) -> int:
    """Of one register: the order of its versions, and who wrote last."""
    known = [(one.place, one.value) for one in own if one.place is not None]
    for (earlier, first), (later, second) in pairwise(known):
        if later <= earlier:
            what = f"{first} as version {earlier}, then {second} as {later}"
            raise Violation("9", f"register {register} took {what}")
    last, said = known[-1] if known else (0, "")
    if version < last or (version == last and known and value != said):
        raise Violation(
            "9",
            f"register {register} has {value!r} as {version}; {said!r} was acknowledged as {last}",
        )
    if version > last:
        unsure = {one.value for one in own if one.place is None}
        if value not in unsure:
            raise Violation(
                "9", f"register {register} has {value!r}, which nobody tried after {said!r}"
            )
    return len(known)


# --- the end --------------------------------------------------------------------------------------


def nothing_is_left(processes: Iterable[str], late: Iterable[str]) -> None:
    """Whoever was asked to end has ended, with all that it had started."""
    left, kept_on = sorted(processes), sorted(late)
    if kept_on:
        raise Violation("the end", f"did not end when they were asked: {', '.join(kept_on)}")
    if left:
        raise Violation("the end", f"still there when all had ended: {', '.join(left[:8])}")
