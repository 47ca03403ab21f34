"""What a job with too few workers waits for, who holds it, and the command that frees it. Pure.

Only what is true is told: a command is named when the room that it frees is where the job could
start, and for the first of those who wait for it. The sentence names no times and no counts but
what the command leaves, so it changes only when the holder does.
"""

from __future__ import annotations

from typing import Final

from holdfast.control.decide.capacity import DISK, Amounts, plus, slots, times
from holdfast.control.decide.claims import Claim
from holdfast.control.decide.placing import Placing
from holdfast.control.decide.sentences import amount, workers
from holdfast.wire.worker_messages import REPLICA_MODULE

# Jobs that are thought through as the holder for one that waits: a plan has thousands of jobs, and
# a person wants one name.
_TRIED_MAX: Final = 8
_SERVICE_PREFIX: Final = "serve."
# Names in one sentence; the rest is counted.
_NAMES_MAX: Final = 3


def waits(claim: Claim, places: Placing, place_in_queue: int, has: int) -> str:
    """What a job with fewer workers than it wants waits for."""
    if claim.impossible and claim.job.spec.fixed_ports:
        return _port_in_use(claim, places)
    if claim.impossible:
        return (
            f"the machines that are here, all empty, could not hold its minimum of"
            f" {workers(claim.least)} of {amount(claim.need)} each{_diskless(claim, places)}"
        )
    missing = claim.most - has if has else claim.least
    start = f"waits for {amount(times(claim.need, missing))}"
    if has:
        start = f"has {workers(has)} and may have {claim.most}: {start}"
    end = _diskless(claim, places) + (_nth(claim, place_in_queue) if not has else "")
    if claim.promised:
        names = sorted({name for at in claim.promised for name in places.leaving.get(at, ())})
        part = ""
        if len(claim.promised) < missing:
            part = f"{amount(times(claim.need, len(claim.promised)))} of it "
        return f"{start}: {part}held by workers of {_list(names)} that drain{end}"
    if claim.at_limit:
        return f"{start}: queue {claim.queue} is at its limit{end}"
    if claim.blocked or claim.target > has:
        cause = "what is free is in pieces too small, and nobody's share may be taken for it"
    elif not has and (held := _holder(claim, places, missing)):
        return f"{start}; {held}{end}"
    else:
        cause = "it is held by jobs that go first or came first"
    return f"{start}: {cause}{end}"


def _diskless(claim: Claim, places: Placing) -> str:
    """Which machines are passed over since nobody knows how much disk they have."""
    nodes = places.world.diskless if claim.need[DISK] else ()
    if not nodes:
        return ""
    report, agents = (
        ("report", "their agents are") if len(nodes) > 1 else ("reports", "its agent is")
    )
    return f"; {_list(list(nodes))} {report} no disk ({agents} of an older version), so not there"


def _port_in_use(claim: Claim, places: Placing) -> str:
    """Why too few machines can hold a worker whose ports are fixed."""
    spec = claim.job.spec
    fixed = sorted(spec.fixed_ports)
    ports = f"port {fixed[0]}" if len(fixed) == 1 else f"ports {', '.join(map(str, fixed))}"
    others = {
        job
        for used in places.world.ports.values()
        for port, job in used.items()
        if port in spec.fixed_ports and job != claim.name
    }
    held = f", and {_list(sorted(others))} has it" if others else ""
    return (
        f"waits for {workers(claim.least)} on as many machines: {ports} of its job file is fixed,"
        f" so each holds one{held}; `ports: [{', '.join(sorted(spec.ports))}]` lets each choose"
    )


def _nth(claim: Claim, place: int) -> str:
    tens, ones = divmod(place % 100, 10)
    ending = "th" if tens == 1 else {1: "st", 2: "nd", 3: "rd"}.get(ones, "th")
    return f"; it is {place}{ending} in queue {claim.queue}"


def _list(names: list[str]) -> str:
    shown = names[:_NAMES_MAX]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


# --- who holds it ---------------------------------------------------------------------------------


def _holder(claim: Claim, places: Placing, missing: int) -> str:
    """Who holds what `missing` workers of the claim need; empty: no single job does."""
    if not _is_first(claim, places):
        return ""
    found = _fewer(claim, places, missing)
    if found is None:
        return ""
    holder, keeps = found
    return f"job `{holder.name}` holds it; `{_command(holder, keeps)}` frees it"


def _is_first(claim: Claim, places: Placing) -> bool:
    """Whether nobody who needs one of the same kinds of things waits before it: room that gets free
    would be theirs."""
    first = places.first_to_wait()
    return all(first[kind] is claim for kind, part in enumerate(claim.need) if part)


def _fewer(claim: Claim, places: Placing, missing: int) -> tuple[Claim, int] | None:
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


def _keeps(claim: Claim, other: Claim, places: Placing, lacking: int) -> int | None:
    """How many workers it would keep if it gave up as many as make room for so many more of the
    claim's; None: all of them would not be enough."""
    rooms: dict[str, Amounts] = {}
    won, keeps = 0, other.staying
    for placement in places.dispensable(other):
        node = placement.node
        free = rooms.get(node, places.capacity.free.get(node))
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
