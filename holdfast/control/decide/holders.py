"""Who holds what a waiting job needs, and the command that would free it. Pure.

Only what is true is told: a command is named when the room that it frees is where the job could
start, and for the first of those who wait for it. The sentence names no times and no counts but
what the command leaves, so it changes only when the holder does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.control.decide.claims import Claim
from holdfast.control.decide.rooms import Room, plus, slots
from holdfast.wire.talk import REPLICA_MODULE

if TYPE_CHECKING:
    from holdfast.control.decide.places import Places

# Jobs that are thought through as the holder for one that waits: a plan has thousands of jobs, and
# a person wants one name.
_TRIED_MAX: Final = 8
_SERVICE_PREFIX: Final = "serve."


def of(claim: Claim, places: Places, missing: int) -> str:
    """Who holds what `missing` workers of the claim need; empty: no single job does."""
    if not _is_first(claim, places):
        return ""
    found = _fewer(claim, places, missing)
    if found is None:
        return ""
    holder, keeps = found
    return f"job `{holder.name}` holds it; `{_command(holder, keeps)}` frees it"


def _is_first(claim: Claim, places: Places) -> bool:
    """Whether nobody who needs one of the same kinds of things waits before it: room that gets free
    would be theirs."""
    first = places.first_to_wait()
    return all(first[kind] is claim for kind, part in enumerate(claim.need) if part)


def _fewer(claim: Claim, places: Places, missing: int) -> tuple[Claim, int] | None:
    """The holder that would have to give least, and how many workers it would keep: first one that
    can shrink, else one that would have to leave whole; of those the last in rank."""
    fits = places.free_slots(claim)
    whole: tuple[Claim, int] | None = None
    tried = 0
    for other in reversed(places.world.claims):
        if other is claim or not other.staying or not _overlap(claim, other):
            continue
        tried += 1
        if tried > _TRIED_MAX:
            break
        keeps = _keeps(claim, other, places, missing - fits)
        if keeps is None:
            continue
        if keeps >= other.least:
            return other, keeps
        whole = whole or (other, 0)
    return whole


def _overlap(claim: Claim, other: Claim) -> bool:
    return any(mine and theirs for mine, theirs in zip(claim.need, other.need, strict=True))


def _keeps(claim: Claim, other: Claim, places: Places, lacking: int) -> int | None:
    """How many workers it would keep if it gave up as many as make room for so many more of the
    claim's; None: all of them would not be enough."""
    rooms: dict[str, Room] = {}
    won, keeps = 0, other.staying
    for placement in places.dispensable(other):
        node = placement.node
        free = rooms.get(node, places.rooms.free.get(node))
        if free is None:
            continue
        before = slots(claim.need, free)
        rooms[node] = plus(free, other.need)
        won += slots(claim.need, rooms[node]) - before
        keeps -= 1
        if won >= lacking:
            return keeps
    return None


def _command(holder: Claim, keeps: int) -> str:
    """What a person would type."""
    spec, name = holder.job.spec, holder.name
    if REPLICA_MODULE in spec.command:
        service = name.removeprefix(_SERVICE_PREFIX)
        return f"holdfast scale {service} {keeps}" if keeps else f"holdfast unserve {service}"
    if keeps:
        return f"holdfast scale {name} {keeps}"
    return f"holdfast stop {name}" if spec.serves else f"holdfast pause {name}"
